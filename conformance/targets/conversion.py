"""Converts drawn calls: arguments stay NumPy arrays for `reference`, and become tensors for others.

Arrays are converted with the memory in which they lie. A strided view stays one, and the memory
next to it (the guard bands of the strategies) is converted too. So after the call, all memory that
it could have written can be compared with its contents before.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from conformance.arrays.change_tracking import ChangeTracker, Memory, argument_of, flat_tensor
from conformance.arrays.guard_bands import Array, base_of
from conformance.targets.factories import Factory
from conformance.targets.implementations import Implementation
from conformance.values.call import drawn_scalar
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS, torch_dtype
from conformance.values.parts import (
    PLAIN,
    child_path,
    children,
    has_entries,
    has_only_plain,
    is_reference_object,
    with_children,
)
from conformance.values.stubs import stub_class

NEGATED = frozenset(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))
"""The dtypes of tensors that may be lazy negations."""

_DTYPES = (np.dtype, type)
_CONTAINERS = (list, tuple, dict)


class Converter:
    """Copies values for one implementation, with the memory around them.

    Args:
        implementation: The implementation, whose classes replace `reference`'s of the same name.
        device: The device of tensors, or None to keep NumPy arrays (`reference`).
        has_own_objects: Whether objects are stubs, with the class names and the attributes of the
            implementation's objects.
        negates: Whether tensors of signed numbers are lazy negations (`torch._neg_view`): their
            memory holds the other sign.
        written: Names of arguments that the function writes, which are never lazy negations.

    Attributes:
        tracker: Finds changes of the copies.
    """

    def __init__(
        self,
        implementation: Implementation,
        device: str | None,
        *,
        has_own_objects: bool = False,
        negates: bool = False,
        written: frozenset[str] = frozenset(),
    ) -> None:
        self.implementation = implementation
        self.device = device
        self.has_own_objects = has_own_objects
        self.negates = negates
        self.written = written
        self.tracker = ChangeTracker()
        self._made: dict[tuple[int, str], tuple[Any, Any]] = {}

    def convert(self, value: Any, path: str) -> Any:
        """Return the implementation's copy of a value; each object is copied only once.

        Objects of `reference`'s classes become objects of the implementation's class of the same
        name, or stubs. A factory becomes the object that it makes, a NumPy dtype torch's. Other
        objects (an input batch) are deep-copied. `path` is the name in messages; its last part
        decides the device.
        """
        if type(value) in PLAIN:  # most values
            return value
        if isinstance(value, np.generic):
            return drawn_scalar(value)
        if isinstance(value, _DTYPES) and _is_dtype(value):
            return value if self.device is None else torch_dtype(np.dtype(value))
        key = id(value), self._place(value, path)
        if key not in self._made:
            # The drawn value is stored too, so that its id is not reused.
            self._made[key] = value, self._convert(value, path)
        return self._made[key][1]

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget the copies made inside the block when it ends."""
        made = dict(self._made)
        with self.tracker.forgetting():
            try:
                yield
            finally:
                self._made = made

    def _convert(self, value: Any, path: str) -> Any:
        converted: Any
        if isinstance(value, np.ndarray):
            return self._convert_array(value, path)
        if isinstance(value, _CONTAINERS) or type(value) is SimpleNamespace:
            converted = with_children(value, self._convert_children(value, path))
        elif isinstance(value, set):
            converted = set(value)
        elif isinstance(value, Factory):
            converted = value.make(self)
        elif is_reference_object(value):
            converted = self._convert_object(value, path)
        else:
            return copy.deepcopy(value)
        self.tracker.track_holder(path, converted)
        return converted

    def _convert_children(self, value: Any, path: str) -> dict[Any, Any]:
        inside, is_entry = children(value), has_entries(value)
        if has_only_plain(value):  # they may be many
            return dict(inside)
        return {
            k: v if type(v) in PLAIN else self.convert(v, child_path(path, k, is_entry=is_entry))
            for k, v in inside.items()
        }

    def _convert_object(self, value: Any, path: str) -> Any:
        """Return an object of `reference` as one of the implementation, or as a stub."""
        fields = self._convert_children(value, path)
        name = type(value).__name__
        is_made = not self.has_own_objects or path == "self"  # a method's `self` is never a stub
        if is_made and self.implementation.offers(name):
            return self.implementation.adapter.new(name, **fields)
        converted: Any = object.__new__(stub_class(type(value)))
        properties = {n: self.convert(v, f"{path}.{n}") for n, v in _properties(value).items()}
        vars(converted).update(fields, **properties)
        return converted

    def _place(self, value: object, path: str) -> str:
        """Return where to copy an array, which its name decides; or whether an object is `self`."""
        if not isinstance(value, np.ndarray):
            return "self" if path == "self" else ""
        name = path.rsplit(".", 1)[-1]
        if self.device is None or name in NUMPY_IN_BOTH_TWINS:
            return "numpy"
        return "cpu" if name.endswith("_cpu") or name == "cpu" else self.device

    def _convert_array(self, array: Array, path: str) -> Array | torch.Tensor:
        where = self._place(array, path)
        drawn = base_of(array)
        if not drawn.flags.c_contiguous:
            raise ValueError(
                f"{path} lies in memory that is not C-contiguous; draw it in C-contiguous memory"
            )
        memory = self.tracker.memories.get((id(drawn), where))
        if memory is None:
            memory = self.tracker.memories[id(drawn), where] = self._convert_memory(
                drawn, path, where
            )
        return self.tracker.track_array(path, array, memory)

    def _convert_memory(self, drawn: Array, path: str, where: str) -> Memory:
        is_numpy = where == "numpy"
        is_negated = not is_numpy and self._negates(drawn, path, where)
        values = np.asarray(np.negative(drawn)) if is_negated else drawn
        copied = self._copied(values)
        converted = copied if is_numpy else flat_tensor(copied, where)
        as_numpy = copied if is_numpy or where == "cpu" else None
        return Memory(path, values, converted, as_numpy, is_negated, drawn)

    def _copied(self, drawn: Array) -> Array:
        """Return a copy of drawn memory; a subclass may place it elsewhere."""
        return drawn.copy()

    def _negates(self, array: Array, path: str, device: str) -> bool:
        """Return whether an array becomes a lazy negation.

        On a GPU, an array with NaNs does not, since a GPU does not negate them.
        """
        if not self.negates or array.dtype not in NEGATED or argument_of(path) in self.written:
            return False
        return device == "cpu" or array.dtype.kind != "f" or not np.isnan(array).any()


def _properties(value: object) -> dict[str, Any]:
    """Return the values of an object's properties, except for abstract ones."""
    found = {}
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, property):
                with contextlib.suppress(NotImplementedError):
                    found[name] = getattr(value, name)
    return found


def _is_dtype(value: Any) -> bool:
    """Return whether a dtype or class is a NumPy dtype or scalar type that torch has too."""
    if isinstance(value, type) and not issubclass(value, np.generic):
        return False
    return isinstance(getattr(torch, np.dtype(value).name, None), torch.dtype)
