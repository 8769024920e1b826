"""Sizes and contents: each size is drawn by itself, mostly small, sometimes large."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

EDGES: Final = (16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
"""Sizes at which code changes its path: of warps, blocks of threads, buffers, bytes."""

Rng: TypeAlias = np.random.Generator

_IS_SMALL: ContextVar[bool] = ContextVar("mostly small", default=False)


@contextlib.contextmanager
def mostly_small() -> Iterator[None]:
    """Draw most sizes small inside: for refusals, which seldom depend on a size."""
    token = _IS_SMALL.set(True)
    try:
        yield
    finally:
        _IS_SMALL.reset(token)


@st.composite
def sizes(draw: st.DrawFn, least: int = 0, most: int = 1100, *, small: int = 5) -> int:
    """Draw a size: half are small, others uniform up to 70, exactly at an edge or next to one."""
    band = draw(st.integers(0, 49 if _IS_SMALL.get() else 9))
    if band < 5 or band > 9 or most <= small:
        return draw(st.integers(least, max(least, min(small, most))))
    if band < 7:
        return draw(st.integers(least, max(least, min(70, most))))
    edges = [edge for edge in EDGES if edge <= most] or [most]
    # A few small ones before them, so that it shrinks.
    size = draw(st.sampled_from((2, 3, 5, *3 * edges))) + draw(st.sampled_from((0, 0, -1, 1)))
    return max(least, min(most, size))


def fit(limit: int, *drawn: int) -> tuple[int, ...]:
    """Halve the greatest of some sizes until their product is at most `limit`.

    >>> fit(100, 1000, 3)
    (31, 3)
    """
    fitting = list(drawn)
    while np.prod(fitting, dtype=float) > limit and max(fitting) > 1:
        fitting[fitting.index(max(fitting))] //= 2
    return tuple(fitting)


def rngs() -> st.SearchStrategy[Rng]:
    return st.integers(0, 2**32 - 1).map(np.random.default_rng)


@st.composite
def vectors(
    draw: st.DrawFn, size: int, least: int, most: int, dtype: Any = np.int64, *, rare: Any = ()
) -> npt.NDArray[Any]:
    """Draw a vector of integers, sometimes of equal ones; up to 8 are drawn one by one."""
    elements = st.integers(least, most)
    if rare:
        elements = elements | st.sampled_from(rare)
    if size <= 8:
        return np.array([draw(elements) for _ in range(size)], dtype)
    first = [draw(elements) for _ in range(4)]  # as many as a short one needs, so that it shrinks
    if draw(st.integers(0, 9)) == 9:
        return np.full(size, first[0], dtype)
    rng = draw(rngs())
    found = rng.integers(least, most, size, endpoint=True).astype(dtype)
    if rare:
        at = rng.random(size) < 0.1
        found[at] = rng.choice(np.array(rare, dtype), int(at.sum()))
    found[:4] = first
    return found
