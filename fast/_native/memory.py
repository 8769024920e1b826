"""Verify the memory of CPU tensors and NumPy arrays before a loop reads or writes it.

A loop gets an address and a number of entries. This module verifies that there is such memory: of
the right dtype and number of dimensions, contiguous, on the CPU, long enough, not null, inside the
tensor's storage. Callers store tensors, never their addresses or NumPy views of them: memory moves
when a tensor is shared between processes (`share_memory_`).

All functions raise TypeError for a wrong type or dtype and for tensors that have no memory of their
own, and ValueError for a wrong length, dimension or device, and for tensors without memory or past
the end of their storage.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    PLAIN_CLASSES,
    check_host,
    check_kind,
    check_tensor,
    is_functional,
    is_kind,
)

LOW: Final = 2**32
"""A lower address is checked further: without memory a tensor's address is the offset of its view
from 0."""


def locate(
    name: str, value: torch.Tensor, dtype: torch.dtype, length: int | None = None
) -> tuple[int, torch.Tensor]:
    """Return the address of a vector's entries, contiguous, and the tensor that holds them.

    The tensor is a copy if `value` is strided. With `length` it must have that many entries.
    """
    # The usual case in one expression, which saves 1 us of 1.4.
    try:
        if (
            type(value) is torch.Tensor
            and value.dtype is dtype
            and value.is_cpu
            and value.ndim == 1
            and value.is_contiguous()
            and ((items := value.nelement()) == length or length is None)
            and not value.is_neg()
        ):
            address = value.data_ptr()
            end = (value.storage_offset() + items) * dtype.itemsize
            if address >= LOW and end <= value.untyped_storage().nbytes():
                return address, value
    except RuntimeError:  # it is of a kind that has no address
        pass
    check_vector(name, value, dtype, length)
    whole = plain(name, value).contiguous()
    return whole.data_ptr(), whole


def locate_table(
    name: str, value: torch.Tensor, dtype: torch.dtype
) -> tuple[int, torch.Tensor, int, int]:
    """Return the address of a matrix, the tensor that holds it, and its strides in entries."""
    if not (
        type(value) is torch.Tensor
        and value.dtype is dtype
        and value.is_cpu
        and value.layout is torch.strided
        and value.ndim == 2
    ):
        check_tensor(name, value, dtype, 2)
        check_host(name, value)
    value = plain(name, value)
    rows, columns = value.stride()
    return value.data_ptr(), value, rows, columns


def check_vector(
    name: str, value: torch.Tensor, dtype: torch.dtype, length: int | None = None
) -> None:
    """Check that a value is a vector on the CPU with `length` entries of a dtype."""
    if (
        type(value) is torch.Tensor
        and value.dtype is dtype
        and value.is_cpu
        and value.ndim == 1
        and value.layout is torch.strided
        and (length is None or value.nelement() == length)
    ):
        return
    check_tensor(name, value, dtype, 1)
    check_host(name, value)
    if length is not None and value.shape[0] != length:
        raise ValueError(f"{name} has {value.shape[0]} entries, expected {length}")


def as_array(name: str, value: torch.Tensor) -> npt.NDArray[Any]:
    """Return a CPU tensor as a NumPy array of the same memory, to be used in this call only."""
    if type(value) is torch.Tensor and value.is_cpu and not value.is_neg():
        check_memory(name, value)
    else:
        check_host(name, value)
        value = plain(name, value)
    return (value.detach() if value.requires_grad else value).numpy()


def plain(name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor on any device whose memory holds its values: itself, or a copy."""
    check_memory(name, value)
    if value.is_neg():  # a lazy negation (`torch._neg_view`): memory holds the other sign
        value = value.resolve_neg()
    return value


def check_memory(name: str, value: torch.Tensor) -> int:
    """Return the address of a tensor's memory, on any device: not null, inside its storage."""
    if type(value) is torch.Tensor:
        try:
            address = value.data_ptr()
            if address >= LOW and _end(value) <= value.untyped_storage().nbytes():
                return address
        except RuntimeError:  # it is of a kind that has no address
            pass
    if is_functional(value) or (type(value) not in PLAIN_CLASSES and not _has_memory(value)):
        check_kind(name, value)
    try:
        address, num_bytes = value.data_ptr(), value.untyped_storage().nbytes()
    except RuntimeError:  # NotImplementedError is one
        check_kind(name, value)
        raise
    if value.is_meta or (num_bytes == 0 and value.nelement()):
        raise ValueError(f"{name} has no memory: it is on {value.device}, with no storage")
    if value.nelement() and _end(value) > num_bytes:
        raise ValueError(f"{name} reaches past the {num_bytes} bytes of its storage")
    return address


def _end(value: torch.Tensor) -> int | torch.SymInt:
    """Return where a tensor's last element ends, in bytes of its storage.

    A view reaches past its storage if that was resized to less.
    """
    begin = value.storage_offset() * value.itemsize
    if value.is_contiguous():
        return begin + value.nbytes
    last: int | torch.SymInt = 0
    for length, step in zip(value.shape, value.stride(), strict=True):
        last += (length - 1) * step
    return begin + (last + 1) * value.itemsize


def _has_memory(value: torch.Tensor) -> bool:
    """Return whether a tensor of another class has memory; a wrapper like `FakeTensor` has none."""
    if is_kind(value, "FakeTensor"):
        return False
    try:
        return value.data_ptr() != 0
    except RuntimeError:
        return False


def to_host(name: str, value: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's values as a NumPy array; synchronises, so for checked mode only."""
    array: npt.NDArray[Any] = plain(name, value).detach().cpu().numpy()
    return array


def as_written_array(
    name: str, value: torch.Tensor, dtype: type[np.generic], ndim: int
) -> npt.NDArray[Any]:
    """Return a contiguous CPU tensor as a NumPy array to write to; torch counts it as a write."""
    if value.is_neg():
        raise ValueError(f"{name} is a lazy negation, expected memory that can be written")
    array = as_array(name, value)
    check_written(name, array, dtype, ndim)
    torch.autograd.graph.increment_version(value)
    return array


def check_written(name: str, value: npt.NDArray[Any], dtype: type[np.generic], ndim: int) -> None:
    """Check that a loop can write to an array: its dtype, dimensions and contiguity."""
    if type(value) is not np.ndarray or value.dtype != dtype:
        found = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name} must be a NumPy array of {dtype.__name__}, got {found}")
    if value.ndim != ndim or not value.flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous with {ndim} dimensions, got shape {value.shape} and strides"
            f" {value.strides}"
        )
