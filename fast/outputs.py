"""Memory that a caller hands over to be written: `out=`."""

from collections.abc import Mapping

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from fast._checks import check_dense, check_same_device, get_dtype_name, not_a_tensor
from fast._native.memory import check_memory
from fast.checked_mode import is_checked


def check_rows_out(
    out: object,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    inputs: Mapping[str, torch.Tensor],
    device: torch.device,
    *,
    may_be_longer: bool = False,
) -> torch.Tensor:
    """Return a tensor whose rows can be written to.

    Args:
        out: what a caller hands over.
        dtype: what it must be of.
        shape: what it must have; with `may_be_longer` also more rows.
        inputs: what it must share no memory with, in checked mode.
        device: where it must be.
        may_be_longer: whether there may be more rows.

    Raises:
        TypeError: it is no tensor, or of another dtype.
        ValueError: it has another shape, is elsewhere or not in one piece, or needs a gradient; in
            checked mode, it shares memory with an input.
    """
    if not isinstance(out, torch.Tensor):
        raise TypeError(not_a_tensor("out", out))
    check_dense("out", out)
    if out.dtype is not dtype:
        raise TypeError(f"out must be {get_dtype_name(dtype)}, got {get_dtype_name(out.dtype)}")
    found = tuple(out.shape)
    is_longer = may_be_longer and out.dim() == len(shape) and found[0] >= shape[0]
    if found != shape and not (is_longer and found[1:] == shape[1:]):
        more = " or more rows" if may_be_longer else ""
        raise ValueError(f"out has shape {found}, expected {shape}{more}")
    if out.device != device:
        check_same_device([("out", out)], device)
    if not out.is_contiguous() or out.is_conj() or out.is_neg():
        raise ValueError("out is not contiguous, expected memory in one piece")
    if out.requires_grad:
        raise ValueError("out requires a gradient, expected memory that is only written")
    if not is_dynamo_compiling():
        check_memory("out", out)
    if is_checked():
        check_own_memory(out, inputs)
    return out


def check_own_memory(out: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse an `out` that shares memory with an input.

    Raises:
        TypeError: an input is of a kind that has no memory of its own.
        ValueError: it does.
    """
    for name, tensor in {"out": out, **inputs}.items():
        check_memory(name, tensor)
    if any(_share_memory(out, tensor) for tensor in inputs.values()):
        raise ValueError("out shares memory with an input, expected memory of its own")


class _Addresses:
    """A tensor's addresses as NumPy takes them; nothing is read there, so a GPU's serve too."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * stride for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
        }


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)))
