"""Writes of a caller into the results of earlier calls, as runners pad rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def _write_through_another_view(target: torch.Tensor, values: torch.Tensor) -> None:
    shape, strides, offset = target.shape, target.stride(), target.storage_offset()
    target.as_strided(shape, strides, offset).copy_(values)


def _write_without_gradients(target: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        target[...] = values


def _write_in_inference_mode(target: torch.Tensor, values: torch.Tensor) -> None:
    with torch.inference_mode():
        target.view(target.shape).copy_(values)


WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "in place": lambda target, values: target.copy_(values),
    "without gradients": _write_without_gradients,
    "in inference mode": _write_in_inference_mode,
    "through another view": _write_through_another_view,
    "through a detached tensor": lambda target, values: target.detach().copy_(values),
    "as out": lambda target, values: torch.add(values, 0, out=target),
}
"""Ways to write a tensor through torch, by name."""


@dataclasses.dataclass(frozen=True)
class Overwrite:
    """One value, written into a part of an array that an earlier call returned.

    Attributes:
        array: The index of the array, among those that the object's calls return views of.
        axis: The axis along which the part is a slice.
        first: The first index of the slice, which extends to the end of the axis.
        value: The value.
        way: How a tensor is written, one of `WAYS`.
    """

    array: int
    axis: int
    first: int
    value: int
    way: str

    @property
    def where(self) -> tuple[slice, ...]:
        """The index of the part."""
        return (*[slice(None)] * self.axis, slice(self.first, None))

    def write(self, array: Any) -> None:
        """Write the value into an array of `reference`, or into a tensor.

        >>> table, tensor = np.ones((2, 2), np.int32), torch.ones(2, 2)
        >>> Overwrite(0, 0, 1, -1, "in place").write(table)
        >>> Overwrite(0, 1, 1, -1, "as out").write(tensor)
        >>> table.tolist(), tensor.tolist()
        ([[1, 1], [-1, -1]], [[1.0, -1.0], [1.0, -1.0]])
        """
        part = array[self.where]
        if isinstance(part, np.ndarray):
            part[...] = self.value
        else:
            WAYS[self.way](part, torch.full_like(part, self.value))

    def __repr__(self) -> str:
        where = f"from index {self.first} of axis {self.axis}"
        array = f"returned array {self.array}"
        return f"the caller writes {self.value} into {array}, {where}, {self.way}"
