"""`CpuGpuBuffer`: one array under three names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference import CpuGpuBuffer
from reference._checks import DTYPES


def make(*size: int, dtype: object = np.int32) -> CpuGpuBuffer:
    """Make a buffer, on a device that does not matter."""
    return CpuGpuBuffer(*size, dtype=dtype, device="cuda:7", pin_memory=True)


def test_one_array_under_three_names() -> None:
    """It is zeroed, has the size and dtype asked for, and is one array."""
    buffer = make(3, 2)
    assert [[0, 0]] * 3 == buffer.cpu.tolist()
    assert buffer.cpu.dtype == np.int32
    assert buffer.gpu is buffer.cpu
    assert buffer.np is buffer.cpu


def test_copies_return_the_part_that_was_copied() -> None:
    """What is copied is the first entries of the first dimension, all by default, as views."""
    buffer = make(3, 2)
    buffer.np[1] = [5, 7]
    assert [[0, 0], [5, 7]] == buffer.copy_to_gpu(2).tolist()
    assert (3, 2) == buffer.copy_to_gpu().shape == buffer.copy_to_cpu().shape
    assert (0, 2) == buffer.copy_to_cpu(0).shape
    assert np.shares_memory(buffer.copy_to_gpu(2), buffer.gpu)
    assert np.shares_memory(buffer.copy_to_cpu(np.int64(3)), buffer.cpu)


def test_empty_sizes() -> None:
    """A dimension may be 0."""
    assert (0,) == make(0).copy_to_gpu(0).shape
    assert (2, 0) == make(2, 0).copy_to_cpu().shape


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name: str) -> None:
    """Each dtype is taken as a dtype and as a scalar type; three of them have no NumPy view."""
    scalar = (
        getattr(ml_dtypes, name) if "float8" in name or name[0:2] == "bf" else getattr(np, name)
    )
    for dtype in (scalar, np.dtype(scalar)):
        buffer = make(2, dtype=dtype)
        assert name == buffer.cpu.dtype.name
        if scalar.__module__ == "ml_dtypes":
            with pytest.raises(TypeError, match=rf"^dtype {name} has no NumPy view; use cpu$"):
                _ = buffer.np
        else:
            assert buffer.np is buffer.cpu


@pytest.mark.parametrize(
    "dtype", [int, "int32", np.integer, np.object_, np.dtype(">i4"), np.str_, None, 5]
)
def test_refusals_of_dtypes(dtype: object) -> None:
    """What is no dtype, or none that torch has, is a TypeError."""
    with pytest.raises(TypeError, match=r"^dtype must be a supported dtype, got "):
        make(2, dtype=dtype)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        ((), ValueError, "size is empty, expected at least 1 dimension"),
        ((2, -1), ValueError, "size[1] is -1, expected 0 to 9223372036854775807"),
        ((2.0,), TypeError, "size[0] must be an int, got 2.0 of float"),
        ((True,), TypeError, "size[0] must be an int, got True of bool"),
        (((2, 3),), TypeError, "size[0] must be an int, got tuple"),
    ],
)
def test_refusals_of_sizes(size: tuple[Any, ...], error: type[Exception], message: str) -> None:
    """A size that cannot be is refused, in these words."""
    with pytest.raises(error) as caught:
        make(*size)
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (4, ValueError, "n is 4, expected 0 to 3"),
        (-1, ValueError, "n is -1, expected 0 to 3"),
        (1.0, TypeError, "n must be an int, got 1.0 of float"),
        (True, TypeError, "n must be an int, got True of bool"),
    ],
)
def test_refusals_of_copies(n: object, error: type[Exception], message: str) -> None:
    """A number of entries out of range is refused both ways, in these words."""
    for copy in (make(3).copy_to_gpu, make(3).copy_to_cpu):
        with pytest.raises(error) as caught:
            copy(n)
        assert message == str(caught.value)


def test_pin_memory_is_a_bool() -> None:
    """The flag is ignored but for its type."""
    with pytest.raises(TypeError, match=r"^pin_memory must be a bool, got 1 of int$"):
        CpuGpuBuffer(2, dtype=np.int32, device=None, pin_memory=1)
