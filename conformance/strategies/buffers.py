"""Buffers on the CPU and the device, and copies between their halves."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import ml_dtypes
import numpy as np

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st

ROWS: Final = "rows"
ROW_LENGTH: Final = "length of a row"
DIMENSIONS: Final = "dimensions"

DTYPES = (np.int32, np.int64, np.float32, np.float16, np.bool_, np.uint8)
NO_NUMPY = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
"""Dtypes that torch has and NumPy lacks."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """A buffer, and a sequence of writes to one half, each copied to the other.

    Attributes:
        size: The buffer's shape.
        dtype: NumPy's scalar type.
        copies: The half written, the values, and the number copied (None: all).
    """

    size: tuple[int, ...]
    dtype: Any
    copies: tuple[tuple[str, int, int | None], ...]


@st.composite
def copies(draw: st.DrawFn, preset: Preset) -> Copies:
    """Draw a buffer and the copies between its halves."""
    size = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    if preset.axis == DIMENSIONS:
        size = (2,) + (1,) * (draw(preset.sizes(DIMENSIONS, st.nothing())) - 1)
    elif preset.axis:
        rows, length = (preset.sizes(axis, st.just(2)) for axis in (ROWS, ROW_LENGTH))
        size = draw(rows), draw(length)
    elif draw(st.RARELY):
        size = draw(st.sampled_from(((0, 2**31), (2**40, 0))))
    number = st.one_of(st.none(), st.integers(0, size[0]))
    half = st.sampled_from(("cpu", "gpu"))
    steps = draw(st.lists(st.tuples(half, st.integers(0, 100), number), max_size=4))
    return Copies(size, draw(st.sampled_from((*DTYPES, *NO_NUMPY))), tuple(steps))
