"""Where tokens are in the cache: `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

import numpy as np
import pytest

from reference import compute_slot_mapping


def test_out_of_one_entry() -> None:
    """One entry shares no memory with another, whatever its stride is said to be."""
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (1,), (0,))
    starts = np.array([0, 1], np.int32)
    compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([1]), 2, out=out)
    assert [11] == out.tolist()


@pytest.mark.parametrize("stride", [-7, 0, 7])
def test_out_of_two_entries_that_overlap(stride: int) -> None:
    """Two entries that share a byte are refused, whichever way the second one lies."""
    memory = np.zeros(4, np.int64)
    out = np.lib.stride_tricks.as_strided(memory[1:], (2,), (stride,))
    starts = np.array([0, 1], np.int32)
    with pytest.raises(ValueError, match=r"^out is one element repeated"):
        compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([1]), 2, out=out)
    assert [0] * 4 == memory.tolist()


def test_out_backwards() -> None:
    """A stride may be negative."""
    out = np.full(3, 77, np.int64)
    starts = np.array([0, 2], np.int32)
    compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([0, 1]), 2, out=out[::-1])
    assert [-1, 11, 10] == out.tolist()
