"""`CpuGpuBuffer`: one array under three names."""

from __future__ import annotations

import numpy as np
import pytest

from reference import CpuGpuBuffer


def make(*size: int, dtype: object = np.int32) -> CpuGpuBuffer:
    """Make a buffer, on a device that does not matter."""
    return CpuGpuBuffer(*size, dtype=dtype, device="cuda:7", pin_memory=True)


def test_one_array_under_three_names() -> None:
    """It is zeroed, has the size and dtype requested, and is one array."""
    buffer = make(3, 2)
    assert [[0, 0]] * 3 == buffer.cpu.tolist()
    assert buffer.cpu.dtype == np.int32
    assert buffer.gpu is buffer.cpu
    assert buffer.np is buffer.cpu


@pytest.mark.parametrize(
    "dtype", [int, "int32", np.integer, np.object_, np.dtype(">i4"), np.str_, None, 5]
)
def test_refusals_of_dtypes(dtype: object) -> None:
    """What is not a dtype, or none that torch has, is a TypeError."""
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        make(2, dtype=dtype)
