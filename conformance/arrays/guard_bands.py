"""Arrays with guard bands: elements around an array that a function must not access."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

POISON_BYTE = 0xAA
"""What guard bands are filled with."""

GUARD = 2
"""Elements of a guard band."""


def poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array with poison in every byte; an array of bools is all True.

    >>> poisoned((2,), np.int32).tolist()
    [-1431655766, -1431655766]
    """
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(1 if array.dtype == np.bool_ else POISON_BYTE)
    return array


def is_poisoned(array: Array) -> bool:
    """Return whether all elements of an array are poison; False without any, or below 4 bytes.

    Small dtypes have too few values: a call may well be drawn with 170, the byte of poison.

    >>> is_poisoned(poisoned((2,), np.int32)), is_poisoned(np.array([170], np.uint8))
    (True, False)
    """
    if array.size == 0 or array.dtype.kind not in "iuf" or array.itemsize < np.int32().itemsize:
        return False
    return bool((np.ascontiguousarray(array).view(np.uint8) == POISON_BYTE).all())


def base_of(array: Array) -> Array:
    """Return the array that owns the memory of an array: the last `base` that is an array.

    >>> base_of(guarded([1, 2], np.int64)).shape
    (6,)
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def offset_of(array: Array) -> int:
    """Return where an array begins in its memory, in bytes; 0 for an empty one.

    >>> offset_of(guarded([1, 2], np.int64))
    16
    """
    if array.size == 0:
        return 0
    first = base_of(array).__array_interface__["data"][0]
    return int(array.__array_interface__["data"][0] - first)


def same_view(array: Array, memory: Array) -> Array:
    """Return the view of a copied memory that corresponds to an array of the original memory.

    >>> same_view(guarded([1, 2], np.int64), np.arange(6)).tolist()
    [2, 3]
    """
    data = memory.reshape(-1).view(np.uint8).data
    return np.ndarray(array.shape, array.dtype, data, offset_of(array), array.strides)


def guarded(values: Sequence[int], dtype: type[np.generic], stride: int = 1) -> Array:
    """Return values as a vector between guard bands, `stride` elements apart in memory.

    >>> a = guarded([1, 2], np.int64, stride=2)
    >>> a.tolist(), a.strides, a.base.shape
    ([1, 2], (16,), (8,))
    """
    view = poisoned_out(len(values), dtype, stride)
    view[:] = values
    return view


def guarded_table(
    rows: Sequence[Sequence[int]], num_rows: int, width: int, filler: int, stride: int = 1
) -> Array:
    """Return a block table between guard bands, with the filler past each row's end.

    A row's entries are `stride` elements apart in memory.

    >>> table = guarded_table([[5, 9], [7]], 3, 3, 0, stride=2)
    >>> table.tolist(), table.strides, table.base.shape
    ([[5, 9, 0], [7, 0, 0], [0, 0, 0]], (40, 8), (5, 10))
    """
    memory = poisoned((num_rows + 2, width * stride + 2 * GUARD), np.int32)
    table = memory[1 : 1 + num_rows, GUARD : GUARD + width * stride : stride]
    table[:] = filler
    # One assignment for each row would take three times as long for 65,539 rows.
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    is_owned = np.arange(width) < lengths[:, None]
    table[: len(rows)][is_owned] = np.fromiter(chain.from_iterable(rows), np.int32)
    return table


def poisoned_out(length: int, dtype: type[np.generic], stride: int = 1) -> Array:
    """Return an output buffer full of poison between guard bands."""
    if length == 1 and stride == 0:  # as an expanded scalar
        memory = poisoned((1 + 2 * GUARD,), dtype)
        return np.lib.stride_tricks.as_strided(memory[GUARD:], (1,), (0,))
    stride = max(stride, 1)
    memory = poisoned((length * stride + 2 * GUARD,), dtype)
    return memory[GUARD : GUARD + length * stride : stride]


def poisoned_rows_out(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Array:
    """Return a contiguous output buffer of rows, full of poison between guard bands.

    Args:
        shape: The shape of the rows.
        dtype: The dtype of an element.
        offset: Elements by which the rows are shifted, so that they are not aligned to 16 bytes.
    """
    size = int(np.prod(shape))
    first = 16 + offset
    return poisoned((first + size + 16,), dtype)[first : first + size].reshape(shape)
