"""Verify the memory of tensors and NumPy arrays before something reads or writes it.

A loop gets an address and a number of entries. This module verifies that there is such memory: of
the right dtype and number of dimensions, contiguous, on the CPU, long enough, not null, inside the
tensor's storage. Callers store tensors, never their addresses or NumPy views of them: memory moves
when a tensor is shared between processes (`share_memory_`).

All functions raise TypeError for a wrong type or dtype and for tensors that have no memory of their
own, and ValueError for a wrong length, dimension or device, and for tensors without memory or past
the end of their storage.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    CPU,
    INT64,
    PLAIN_CLASSES,
    check_at_least,
    check_dense,
    check_dtypes,
    check_kind,
    check_on,
    check_tensor,
    check_vector,
    is_functional,
    is_kind,
)
from fast.checked_mode import is_checked
from fast.operators import is_traced

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
    check_tensor(name, value, dtype, 2, CPU)
    value = plain(name, value)
    rows, columns = value.stride()
    return value.data_ptr(), value, rows, columns


def locate_words(name: str, value: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """Return the address of a vector on the CPU, its stride, and the tensor that holds it.

    `value` is int32 or int64; the stride is in words of 32 bits. Of an int64 a loop reads the lower
    word, which comes first.
    """
    # The usual case in one expression, which saves 1 us of 2.
    try:
        if type(value) is torch.Tensor and value.is_cpu and not value.is_neg():
            (step,), size = value.stride(), value.itemsize
            end = value.storage_offset() + (value.nelement() - 1) * step + 1
            address = value.data_ptr()
            if address >= LOW and end * size <= value.untyped_storage().nbytes():
                return address, size // 4 * step, value
    except RuntimeError:  # it is of a kind that has no address
        pass
    address, step, _, whole = locate_table_words(name, value)
    return address, step, whole


def locate_table_words(name: str, value: torch.Tensor) -> tuple[int, int, int, torch.Tensor]:
    """Return what `locate_words` does, with the strides of rows and columns.

    Those of a vector are equal.
    """
    if not value.is_cpu:
        check_on(name, value, CPU)
    value = plain(name, value)
    words, steps = value.itemsize // 4, value.stride()
    return value.data_ptr(), words * steps[0], words * steps[-1], value


def locate_target(name: str, value: torch.Tensor) -> tuple[int, int]:
    """Return the address and the number of entries of a contiguous tensor on the CPU."""
    if not value.is_cpu:
        check_on(name, value, CPU)
    return check_target(name, value), value.nelement()


def as_array(name: str, value: torch.Tensor) -> npt.NDArray[Any]:
    """Return a CPU tensor as a NumPy array of the same memory, to be used in this call only."""
    if type(value) is torch.Tensor and value.is_cpu and not value.is_neg():
        check_memory(name, value)
    else:
        check_on(name, value, CPU)
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
        # An empty view has no address, but its storage has one.
        return value.untyped_storage().data_ptr() != 0
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
    check_not_negated(name, value)
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


def first_of(name: str, tensor: torch.Tensor, stop: int, start: int = 0) -> torch.Tensor:
    """Return a view of a tensor's entries or rows `start .. stop - 1`."""
    try:
        return tensor[start:stop]
    except RuntimeError:  # of one whose storage was resized to less
        check_memory(name, tensor)
        raise


def check_not_negated(name: str, value: torch.Tensor) -> None:
    if value.is_neg():
        raise ValueError(f"{name} is a lazy negation, expected memory that can be written")


def check_slots_out(out: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
    """Check that `out` can hold a slot for each of the `positions` among the `inputs`.

    In checked mode it must share no memory with an input.
    """
    positions = inputs["positions"]
    check_tensor("out", out, INT64, 1, positions.device)
    check_at_least("out", len(out), len(positions))
    check_not_negated("out", out)
    if len(out) > 1 and out.stride(0) == 0:
        raise ValueError("out is one element repeated, expected one for each token")
    if is_checked():
        check_own_memory("out", out, inputs)


def check_rows_out(
    out: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    inputs: Mapping[str, torch.Tensor],
    device: torch.device,
    *,
    may_be_longer: bool = False,
) -> torch.Tensor:
    """Return `out` if rows of this dtype and shape can be written to it, or raise.

    With `may_be_longer` it may have more rows. It must be contiguous, on `device`, and not require
    a gradient; in checked mode it must share no memory with the `inputs`.
    """
    check_dense("out", out)
    check_dtypes("out", out, dtype)
    found = tuple(out.shape)
    is_longer = may_be_longer and out.dim() == len(shape) and found[0] >= shape[0]
    if found != shape and not (is_longer and found[1:] == shape[1:]):
        more = " or more rows" if may_be_longer else ""
        raise ValueError(f"out has shape {found}, expected {shape}{more}")
    check_on("out", out, device)
    traced = is_traced()
    if not out.is_contiguous() or (not traced and (out.is_conj() or out.is_neg())):
        raise ValueError("out is not contiguous, expected memory in one piece")
    if out.requires_grad:
        raise ValueError("out requires a gradient, expected memory that is only written")
    if not traced:
        check_memory("out", out)
        if is_checked():
            check_own_memory("out", out, inputs)
    return out  # type: ignore[no-any-return]  # checked above


def check_target(name: str, value: torch.Tensor) -> int:
    """Return the address of a tensor that is written, which must be contiguous memory."""
    if not value.is_contiguous() or value.is_neg():
        raise ValueError(f"{name} is not contiguous, expected memory in one piece")
    return check_memory(name, value)


def check_targets(targets: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
    """Check that the tensors that a function writes are contiguous memory.

    In checked mode none may share memory with an input, or with another of them.
    """
    others = dict(inputs)
    for name, target in targets.items():
        check_target(name, target)
        if is_checked():
            check_own_memory(name, target, others)
            others[name] = target


def check_own_memory(name: str, out: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
    for each, tensor in {name: out, **inputs}.items():
        check_memory(each, tensor)
    if any(share_memory(out, tensor) for tensor in inputs.values()):
        raise ValueError(f"{name} shares memory with an input, expected memory of its own")


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have an element in common, on any device."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)))


class _Addresses:
    """A tensor's address range for NumPy's overlap check, which reads no memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
        }
