"""The sizes that are drawn reach from the least to the greatest of an engine."""

from __future__ import annotations

import collections
import random

import pytest

from conformance.coverage.presets import MINIMAL, TRAFFIC, Preset
from conformance.strategies.whole_range import (
    BLOCK_SIZES,
    IN_SIMULATOR,
    OF_PAIRS,
    ON_HOST,
    log_uniform,
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


def test_each_block_size_is_drawn() -> None:
    """All block sizes are drawn, also those that are no powers of two."""
    assert set(BLOCK_SIZES) == {size for preset in DRAWN for size in preset.block_sizes}


def test_a_table_stays_small_enough() -> None:
    """The number of requests times blocks is bounded."""
    for preset in make_presets(requests=64, query=8, context=4096, tokens=64, cells=512):
        maximum = -(-preset.max_context_len // min(preset.block_sizes))
        assert preset.max_num_reqs * maximum <= 512
        assert preset.max_num_tokens >= preset.max_num_reqs


def test_the_same_presets_everywhere() -> None:
    """A stored choice means the same preset on another day and another machine."""
    bounds = {"requests": 1024, "query": 8192, "context": 131_072, "tokens": 8192, "cells": 1 << 16}
    assert DRAWN == make_presets(**bounds)


def test_logarithms_are_uniform() -> None:
    """As many draws lie between 1 and 32 as between 32 and 1,024."""
    chance = random.Random(0)  # noqa: S311  # no secret
    draws = [log_uniform(chance, 1, 1024) for _ in range(4000)]
    assert (1, 1024) == (min(draws), max(draws))
    assert 0.45 < sum(draw <= 32 for draw in draws) / len(draws) < 0.55
