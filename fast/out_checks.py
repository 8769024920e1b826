"""Check `out=`: memory of the caller to which a result is written."""

from collections.abc import Mapping

import numpy as np
import torch

from fast._checks import check_dense, check_same_device, get_dtype_name, not_a_tensor
from fast._native.memory import check_memory
from fast.checked_mode import is_checked
from fast.operators import is_traced


def check_rows_out(
    out: object,
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
    traced = is_traced()
    if not out.is_contiguous() or (not traced and (out.is_conj() or out.is_neg())):
        raise ValueError("out is not contiguous, expected memory in one piece")
    if out.requires_grad:
        raise ValueError("out requires a gradient, expected memory that is only written")
    if not traced:
        check_memory("out", out)
        if is_checked():
            check_own_memory(out, inputs)
    return out


def check_own_memory(out: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError if `out` shares memory with an input."""
    for name, tensor in {"out": out, **inputs}.items():
        check_memory(name, tensor)
    if any(_share_memory(out, tensor) for tensor in inputs.values()):
        raise ValueError("out shares memory with an input, expected memory of its own")


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


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    return np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)))
