"""Arrays as Python source: their elements, and where they lie in a larger one."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

MOST_ELEMENTS = 1000
"""Arrays of more elements are not listed, but packed."""


class UnwritableError(TypeError):
    """A value that has no form in a short script."""


def is_odd(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is none of NumPy's own.

    >>> import ml_dtypes
    >>> is_odd(np.dtype(ml_dtypes.bfloat16)), is_odd(np.dtype(np.int32))
    (True, False)
    """
    return not hasattr(np, dtype.name)


def is_finite(array: Array) -> bool:
    """Tell whether no element is infinite or NaN."""
    if array.dtype.kind in "biu":
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(array.astype(np.complex128)).all())


def elements(array: Array) -> str:
    """Return an array's elements as an expression that, with the dtype, makes the array again.

    Raises:
        UnwritableError: An array of objects or of records.

    >>> elements(np.array([[1, 2]])), elements(np.zeros((3, 2), np.int32))
    ('[[1, 2]]', 'np.full((3, 2), 0)')
    >>> elements(np.array([1.5, np.nan], np.float16))
    "np.array([15872, 32256], 'uint16').view('float16')"
    """
    name = array.dtype.name
    if array.dtype.kind not in "biufc" and not (is_odd(array.dtype) and name[0].isalpha()):
        raise UnwritableError(f"an array of {name}")
    if array.dtype.names or array.dtype.kind in "OSU":
        raise UnwritableError(f"an array of {name}")
    if array.size == 0:
        return f"np.zeros({array.shape})"
    flat = np.ascontiguousarray(array).reshape(-1)
    rows = flat.view(np.uint8).reshape(flat.size, -1)
    if is_finite(array) and array.size > 4 and (rows == rows[0]).all():
        return f"np.full({array.shape}, {_listed(flat[:1])[0]!r})"
    if array.size > MOST_ELEMENTS:
        packed = base64.b85encode(zlib.compress(flat.tobytes(), 9)).decode()
        bits = f"zlib.decompress(base64.b85decode({packed!r}))"
        return f"np.frombuffer({bits}, {name!r}).reshape({array.shape})"
    if is_finite(array):
        return repr(_listed(array))
    word = f"uint{8 * array.dtype.itemsize}"
    bits = repr(flat.view(word).reshape(array.shape).tolist())
    return f"np.array({bits}, {word!r}).view({name!r})"


def _listed(array: Array) -> Any:
    """Return elements as Python's numbers, exactly."""
    return array.astype(np.float64).tolist() if is_odd(array.dtype) else array.tolist()


def part_of(owner: Array, array: Array) -> tuple[slice, ...] | None:
    """Return the slices that make an array of its memory's owner, None where slices cannot.

    >>> a = np.zeros((4, 6))
    >>> part_of(a, a[1:3, ::2])
    (slice(1, 3, None), slice(0, 5, 2))
    """
    if array.ndim != owner.ndim or not array.size or not owner.flags.c_contiguous:
        return None
    if array.dtype != owner.dtype:
        return None
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    found = []
    axes = zip(array.shape, array.strides, owner.shape, owner.strides, strict=True)
    for length, stride, _, unit in axes:
        first, offset = divmod(offset, unit)
        step = stride // unit if length > 1 else 1
        if step < 1 or step * unit != (stride if length > 1 else unit):
            return None
        found.append(slice(first, first + (length - 1) * step + 1, None if step == 1 else step))
    part = tuple(found)
    return part if owner[part].shape == array.shape and math.prod(array.shape) else None


def sliced(part: tuple[slice, ...]) -> str:
    """Return slices as they stand between brackets.

    >>> sliced((slice(1, 3), slice(0, 5, 2)))
    '1:3, 0:5:2'
    """
    return ", ".join(
        f"{cut.start}:{cut.stop}" + ("" if cut.step is None else f":{cut.step}") for cut in part
    )


def strided(owner: Array, array: Array) -> str:
    """Return shape, strides and offset of an array in its memory, in elements.

    Raises:
        UnwritableError: A memory of other elements, or that does not lie in C order.

    >>> a = np.zeros(6)
    >>> strided(a, a[1:].reshape(5, 1))
    '(5, 1), (1, 1), 1'
    """
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    if array.dtype != owner.dtype or not owner.flags.c_contiguous:
        raise UnwritableError("an array in a memory of another kind")
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return f"{array.shape}, {strides}, {offset // array.itemsize}"
