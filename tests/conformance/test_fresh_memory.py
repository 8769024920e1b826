"""Fresh memory is filled inside, so that a missing write shows."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from conformance.harness.fresh_memory import POISON_BYTE, filled_memory
from conformance.harness.targets import Target


def poison(number: int, dtype: type) -> bytes:
    return bytes([POISON_BYTE]) * (number * np.dtype(dtype).itemsize)


def test_numpy_memory_is_filled() -> None:
    with filled_memory():
        for size in (1, 100, 10_000):
            arrays = np.empty(size), np.empty_like(np.ones(size)), np.ndarray(size)
            for array in arrays:
                assert poison(size, np.float64) == array.tobytes()
            assert not np.zeros(size).any()
        array = np.empty(3)
        array[:] = 1
    array.resize(1000, refcheck=False)
    assert [1, 1, 1, 0] == array[:4].tolist()


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_memory_of_compiled_loops_is_filled(size: int) -> None:
    with filled_memory():
        pass
    fresh = numba.njit(lambda size: np.empty(size, np.int32))
    for _ in range(2):
        found = fresh(size)
        assert poison(size, np.int32) == found.tobytes()
        found[:] = 0


def test_targets_run_in_filled_memory() -> None:
    with Target("host").running():
        assert -1431655766 == np.empty(1, np.int32)[0]
