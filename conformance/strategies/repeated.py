"""Large lists: Hypothesis draws a few elements, which are repeated in random order.

It cannot draw thousands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from hypothesis.strategies import SearchStrategy

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st

T = TypeVar("T")

SEEDS: Final = st.integers(0, 2**16)
"""Seeds of the order of elements."""

MAX_DRAWN: Final = 8
"""The most elements that are drawn for a large list."""


def long_lists(elements: SearchStrategy[T], size: int) -> SearchStrategy[list[T]]:
    """Return the strategy of lists of an exact size: a few drawn elements in random order."""
    few = st.lists(elements, min_size=1, max_size=MAX_DRAWN)
    return st.builds(_choices, few, st.just(size), SEEDS)


def _choices(few: Sequence[T], size: int, seed: int) -> list[T]:
    return random.Random(seed).choices(few, k=size)  # noqa: S311  # no secret


def repeated(draw: st.DrawFn, preset: Preset, axis: str, elements: Sequence[T]) -> list[T]:
    """Draw a list of these elements: each once, or repeated to the preset's size of the axis."""
    if preset.axis != axis:
        return list(elements)
    size = draw(preset.sizes(axis, st.nothing()))
    return _choices(elements, size, draw(SEEDS))


def lists(
    draw: st.DrawFn, preset: Preset, axis: str, elements: SearchStrategy[Any], *, max_size: int
) -> list[Any]:
    """Draw a list; if it is large along the axis, only a few elements are drawn."""
    is_large = preset.axis == axis
    drawn = st.lists(elements, min_size=int(is_large), max_size=MAX_DRAWN if is_large else max_size)
    return repeated(draw, preset, axis, draw(drawn))
