"""What an adapter supplies in the place of what an implementation does not keep."""

from __future__ import annotations

import torch

_MARK = "kvtwin_is_supplied"


def supplied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor on the CPU for a field that an implementation does not keep.

    Its values are compared as any other's. Its memory is not compared, since it is ours.

    Args:
        tensor: What the implementation keeps, on any device.

    >>> is_supplied(supplied(torch.arange(3))), is_supplied(torch.arange(3))
    (True, False)
    """
    copied = tensor.detach().to("cpu", copy=True)
    setattr(copied, _MARK, True)
    return copied


def is_supplied(value: object) -> bool:
    """Return whether an adapter supplied a tensor in an implementation's place."""
    return isinstance(value, torch.Tensor) and hasattr(value, _MARK)
