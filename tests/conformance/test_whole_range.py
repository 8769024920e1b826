"""The sizes that are drawn reach from the least to the greatest of an engine."""

from __future__ import annotations

import collections

import pytest

from conformance.coverage.presets import MINIMAL, TRAFFIC, Preset
from conformance.strategies.whole_range import (
    IN_SIMULATOR,
    OF_PAIRS,
    ON_HOST,
    make_presets,
)

DRAWN = tuple(preset for preset in ON_HOST if preset not in {MINIMAL, TRAFFIC})


@pytest.mark.parametrize("presets", [ON_HOST, IN_SIMULATOR, OF_PAIRS])
def test_the_smallest_is_first(presets: tuple[Preset, ...]) -> None:
    """Two thirds, and the first preset, are minimal, so that failing inputs shrink to it."""
    assert MINIMAL is presets[0]
    assert 3 * presets.count(MINIMAL) == 2 * len(presets)
    assert len(set(presets)) == len({preset.name for preset in presets})


@pytest.mark.parametrize(
    ("field", "maximum"),
    [
        ("max_num_reqs", 1024),
        ("max_context_len", 131_072),
        ("max_query_len", 8192),
        ("max_num_tokens", 8192),
    ],
)
def test_each_power_of_two_is_drawn(field: str, maximum: int) -> None:
    """Sizes of each power of two are drawn, up to the upper end of the range."""
    counts = collections.Counter(getattr(preset, field).bit_length() for preset in ON_HOST)
    assert all(counts[bits] for bits in range(2, maximum.bit_length())), counts
    assert max(getattr(preset, field) for preset in ON_HOST) <= maximum
    largest = max(getattr(preset, field) for preset in ON_HOST)
    assert largest > maximum * 0.7


def test_the_same_presets_everywhere() -> None:
    """A stored choice means the same preset on another day and another machine."""
    bounds = {"requests": 1024, "query": 8192, "context": 131_072, "tokens": 8192, "cells": 1 << 16}
    assert DRAWN == make_presets(**bounds)
