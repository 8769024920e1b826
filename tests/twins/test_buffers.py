"""`CpuGpuBuffer`: one array under three names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference._checks import DTYPES


def make(twin: Any, *size: int, dtype: object = np.int32) -> Any:
    dtype = twin.convert(dtype)
    return twin.CpuGpuBuffer(*size, dtype=dtype, device="cpu", pin_memory=False)


def test_a_new_buffer(twin: Any) -> None:
    buffer = make(twin, 3, 2)
    assert [[0, 0]] * 3 == buffer.cpu.tolist() == buffer.gpu.tolist()
    assert twin.dtype("int32") == buffer.cpu.dtype == buffer.gpu.dtype
    assert twin.shares_memory(buffer.np, buffer.cpu)


def test_copies_return_the_part_that_was_copied(twin: Any) -> None:
    buffer = make(twin, 3, 2)
    buffer.np[1] = [5, 7]
    assert [[0, 0], [5, 7]] == buffer.copy_to_gpu(2).tolist()
    assert (3, 2) == buffer.copy_to_gpu().shape == buffer.copy_to_cpu().shape
    assert (0, 2) == buffer.copy_to_cpu(0).shape
    assert twin.shares_memory(buffer.copy_to_gpu(2), buffer.gpu)
    assert twin.shares_memory(buffer.copy_to_cpu(np.int64(3)), buffer.cpu)


def test_empty_sizes(twin: Any) -> None:
    assert (0,) == make(twin, 0).copy_to_gpu(0).shape
    assert (2, 0) == make(twin, 2, 0).copy_to_cpu().shape
    assert (0, 4) == make(twin, 0, 4).copy_to_gpu().shape


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(twin: Any, name: str) -> None:
    scalar = (
        getattr(ml_dtypes, name) if "float8" in name or name[0:2] == "bf" else getattr(np, name)
    )
    for dtype in (scalar, np.dtype(scalar)):
        buffer = make(twin, 2, dtype=dtype)
        assert twin.convert(dtype) == buffer.cpu.dtype == buffer.copy_to_gpu().dtype
        if scalar.__module__ == "ml_dtypes":
            with twin.refuses(f"TypeError: dtype {name} has no NumPy view; use cpu"):
                _ = buffer.np
        else:
            assert twin.shares_memory(buffer.np, buffer.cpu)
