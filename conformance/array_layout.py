"""Where arrays and tensors lie: in whose memory, at which address, with which strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def address_of(array: Any) -> int:
    """Return where the first element of an array or tensor lies; 0 for one without elements."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr() if array.numel() else 0
    return int(array.__array_interface__["data"][0]) if array.size else 0


def strides_of(array: Any) -> tuple[int, ...]:
    """Return the bytes between neighbours, by axis.

    >>> strides_of(np.zeros((2, 3))), strides_of(torch.zeros(2, 3))
    ((24, 8), (12, 4))
    """
    if isinstance(array, torch.Tensor):
        return tuple(stride * array.element_size() for stride in array.stride())
    return tuple(array.strides)


def owner_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array that owns the memory of an array.

    >>> a = np.zeros(6)
    >>> owner_of(a[1:].reshape(5, 1)) is a
    True
    """
    owner: Any = array
    while isinstance(owner.base, np.ndarray | memoryview):
        owner = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    return owner  # type: ignore[no-any-return]  # a base is an array here


def memory_of(array: Any) -> int:
    """Return where the memory begins in which an array or tensor lies.

    >>> a, t = np.zeros(4), torch.zeros(4)
    >>> memory_of(a[2:]) == address_of(a), memory_of(t[2:]) == address_of(t)
    (True, True)
    """
    if isinstance(array, torch.Tensor):
        return array.untyped_storage().data_ptr()
    return address_of(owner_of(array))


def share_memory(a: Any, b: Any) -> bool:
    """Return whether two arrays lie in the same memory: tensors in one storage, arrays overlapping.

    >>> a = torch.zeros(4)
    >>> share_memory(a[:2], a[2:]), share_memory(a, torch.zeros(4)), share_memory(a, a[:0])
    (True, False, False)
    """
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        is_empty = not (a.numel() and b.numel())
        return not is_empty and memory_of(a) == memory_of(b)
    is_numpy = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return is_numpy and bool(np.shares_memory(a, b))
