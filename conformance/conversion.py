"""Carries a drawn call to one side: NumPy arrays to `reference`, torch tensors to a target.

Arrays are carried with the memory they lie in. A strided view stays one, and what stands beside it
(the guard bands that strategies put there) travels too, so that after the call everything an
argument could reach can be compared with what it was.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from conformance.comparison import (
    NUMPY_IN_BOTH_TWINS,
    Difference,
    Verdict,
    as_bytes,
    first_difference,
    torch_dtype,
)

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass
class _Root:
    """The memory that an array lies in.

    Attributes:
        path: The first argument that lies in it.
        drawn: It, as drawn.
        carried: It, as carried.
        is_seen: Which of its elements an argument shows; the others are guard bands.
    """

    path: str
    drawn: Array
    carried: Array | torch.Tensor
    is_seen: Array


class Carrier:
    """Copies values to one side and remembers the memory behind them.

    Args:
        implementation: The module whose classes take the place of `reference`'s, by name.
        device: The device of tensors, or None where arrays stay NumPy arrays (`reference`).
    """

    def __init__(self, implementation: ModuleType, device: str | None) -> None:
        self.implementation = implementation
        self.device = device
        self._roots: dict[tuple[int, str], _Root] = {}

    def carry(self, value: Any, path: str) -> Any:
        """Return this side's copy of a value.

        Args:
            value: What was drawn. Objects of classes that `reference` has become objects of the
                implementation's class of the same name; a caller's own objects (an input batch) are
                deep copies.
            path: The name of the value in messages; the last part decides the device.
        """
        if isinstance(value, np.ndarray):
            return self._carry_array(value, path)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(self.carry(v, f"{path}[{i}]") for i, v in enumerate(value))
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith("reference"):
            cls = getattr(self.implementation, type(value).__name__)
            fields = dataclasses.fields(value)
            return cls(
                **{f.name: self.carry(getattr(value, f.name), f"{path}.{f.name}") for f in fields}
            )
        return copy.deepcopy(value)

    def _carry_array(self, array: Array, path: str) -> Array | torch.Tensor:
        name = path.rsplit(".", 1)[-1]
        if self.device is None or name in NUMPY_IN_BOTH_TWINS:
            where = "numpy"
        else:
            where = "cpu" if name.endswith("_cpu") else self.device
        drawn = array
        while isinstance(drawn.base, np.ndarray):
            drawn = drawn.base
        root = self._roots.get((id(drawn), where))
        if root is None:
            copied = drawn.copy()
            carried = copied if where == "numpy" else _to_tensor(copied, where)
            is_seen = np.zeros(drawn.size, np.bool_)
            root = self._roots[id(drawn), where] = _Root(path, drawn, carried, is_seen)
        offset = array.__array_interface__["data"][0] - drawn.__array_interface__["data"][0]
        offset = offset // array.itemsize if array.size else 0
        strides = [stride // array.itemsize for stride in array.strides]
        np.ndarray(array.shape, np.bool_, root.is_seen.data, offset, strides)[...] = True
        if isinstance(root.carried, torch.Tensor):
            return root.carried.as_strided(array.shape, strides, offset)
        memory = root.carried.reshape(-1).view(np.uint8).data
        start = offset * array.itemsize
        return np.ndarray(array.shape, array.dtype, memory, start, array.strides)

    def changed(
        self, drawn: Mapping[str, Any], carried: Mapping[str, Any], allowed: frozenset[str]
    ) -> Difference | None:
        """Return the first difference of the carried arguments from what was drawn.

        Args:
            drawn: The arguments as drawn.
            carried: This side's copies, after the call.
            allowed: Names of arguments that the function may change.

        Returns:
            The first changed element of an argument or of the memory around it, None where there is
            none.
        """
        twin = Carrier(self.implementation, None)
        for name, value in drawn.items():
            if name in allowed or _is_callers_object(value):
                continue
            expected = twin.carry(value, name)
            difference = (
                _numpy_difference(expected, carried[name], name)
                if self.device is None
                else first_difference(expected, carried[name], name, self.device)
            )
            if difference is not None:
                return difference
        for root in self._roots.values():
            unequal = (as_bytes(root.drawn) != as_bytes(root.carried)).any(axis=-1)
            if root.path.split(".")[0].split("[")[0] in allowed:
                unequal &= ~root.is_seen  # what it may write, and not the guard bands
            if unequal.any():
                where = f"memory around {root.path}"
                at = (int(np.flatnonzero(unequal)[0]),)
                return Difference(Verdict.VALUE, where, at, "changed", "as it was")
        return None


def _to_tensor(array: Array, device: str) -> torch.Tensor:
    """Return a flat tensor on a device with the bytes of a C-contiguous array."""
    data = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(torch_dtype(array.dtype))
    return data.to(device)


def _is_callers_object(value: object) -> bool:
    """Tell whether a value is an object of the caller's own, which the comparator cannot walk."""
    plain = (int, float, str, slice, np.ndarray, list, tuple, dict, type(None), np.generic)
    return not isinstance(value, plain) and not (
        dataclasses.is_dataclass(value) and type(value).__module__.startswith("reference")
    )


def _numpy_difference(expected: object, actual: object, path: str) -> Difference | None:
    """Compare two trees that both hold NumPy arrays."""
    pairs = zip(_arrays(expected, path), _arrays(actual, path), strict=True)
    for (where, before), (_, after) in pairs:
        unequal = (as_bytes(before) != as_bytes(after)).any(axis=-1)
        if unequal.any():
            flat = int(np.flatnonzero(unequal)[0])
            index = tuple(int(i) for i in np.unravel_index(flat, before.shape))
            return Difference(Verdict.VALUE, where, index, after[index], before[index])
    return None


def _arrays(value: Any, path: str) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a tree with their paths."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _arrays(inner, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _arrays(getattr(value, field.name), f"{path}.{field.name}")
