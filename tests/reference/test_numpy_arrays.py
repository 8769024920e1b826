"""Behaviour of `reference` with NumPy arrays that have no equivalent in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reference import (
    AttentionSpec,
    CpuGpuBuffer,
    compute_slot_mapping,
)


def make_buffer(dtype: Any) -> CpuGpuBuffer:
    """Make a buffer of a device that does not matter."""
    return CpuGpuBuffer(3, 2, dtype=dtype, device="cuda:7", pin_memory=True)


@pytest.mark.parametrize("make", [make_buffer, lambda dtype: AttentionSpec(16, 3, 5, dtype)])
@pytest.mark.parametrize(
    "dtype", [int, "int32", np.integer, np.object_, np.dtype(">i4"), np.str_, None, 5]
)
def test_dtypes_that_torch_lacks(make: Callable[[Any], object], dtype: object) -> None:
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        make(dtype)


def slots_into(out: np.ndarray[Any, Any], num_tokens: int) -> None:
    """Write the slots of the first tokens of block 5, of 2 positions."""
    starts = np.array([0, num_tokens], np.int32)
    table, positions = np.array([[5]], np.int32), np.arange(num_tokens)
    compute_slot_mapping(table, starts, positions, 2, out=out)


@pytest.mark.parametrize("stride", [-7, 0, 7])
def test_entries_of_out_that_overlap(stride: int) -> None:
    memory = np.zeros(4, np.int64)
    with pytest.raises(ValueError, match=r"^out is one element repeated"):
        slots_into(np.lib.stride_tricks.as_strided(memory[1:], (2,), (stride,)), 2)
    assert not memory.any()
    slots_into(np.lib.stride_tricks.as_strided(memory[1:], (1,), (stride,)), 1)
    assert [0, 10, 0, 0] == memory.tolist()


def test_an_out_that_is_read_only() -> None:
    out = np.zeros(2, np.int64)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out is read-only"):
        slots_into(out, 2)
