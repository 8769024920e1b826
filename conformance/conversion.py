"""Converts drawn calls: arguments stay NumPy arrays for `reference`, and become tensors for others.

Arrays are converted with the memory in which they lie. A strided view stays one, and the memory
beside it (the guard bands of the strategies) is converted too. So after the call, everything that
the call could have written can be compared with what it was.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch

from conformance.array_layout import address_of
from conformance.comparison import (
    NUMPY_IN_BOTH_TWINS,
    Difference,
    Verdict,
    as_bytes,
    first_unequal,
    torch_dtype,
)
from conformance.factories import Factory
from conformance.implementations import Implementation
from conformance.strategies.arrays import poisoned
from conformance.stubs import stub_class
from conformance.values import PLAIN, child_path, children, is_reference_object, rebuilt

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

NEGATED = frozenset(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))
"""The dtypes of tensors that may be lazy negations."""


@dataclasses.dataclass
class _Root:
    """The memory that an array lies in.

    Attributes:
        path: The first argument that lies in it.
        drawn: It, as drawn, with the other sign where it is negated.
        carried: It, as carried.
        memory: The carried memory as NumPy sees it; None on a device.
        is_negated: Whether the arguments are lazy negations of it.
        source: The memory of the drawn arrays, which is kept: its id is no other's meanwhile.
        shown: Shape, offset and strides, in elements, of each argument that lies in it.
    """

    path: str
    drawn: Array
    converted: Array | torch.Tensor
    memory: Array | None
    is_negated: bool
    source: Array
    shown: list[tuple[tuple[int, ...], int, list[int]]] = dataclasses.field(default_factory=list)

    def is_seen(self) -> Array:
        """Return which of its elements an argument shows; the others are guard bands."""
        seen = np.zeros(self.drawn.shape, np.bool_)
        for shape, offset, strides in self.shown:
            np.ndarray(shape, np.bool_, seen.data, offset, strides)[...] = True
        return seen

    def is_as_drawn(self) -> bool:
        """Tell whether no byte of the carried memory has changed."""
        if self.memory is None:
            return bool((as_bytes(self.drawn) == as_bytes(self.converted)).all())
        return self.drawn.tobytes() == self.memory.tobytes()

    def write(self, values: Array) -> None:
        """Write values to all of the carried memory."""
        if isinstance(self.converted, torch.Tensor):
            self.converted.copy_(_to_tensor(values, "cpu"))
        else:
            self.converted[...] = values

    def holds(self, address: int) -> bool:
        """Tell whether an address lies in the carried memory."""
        first = address_of(self.converted)
        return first <= address < first + self.converted.nbytes


@dataclasses.dataclass(frozen=True)
class _Shown:
    """An array that was carried.

    Attributes:
        path: The argument that it is.
        drawn: It, as drawn.
        carried: It, as carried.
        root: The memory that it lies in.
        layout: Where in that, as it was carried.
    """

    path: str
    drawn: Array
    converted: Array | torch.Tensor
    root: _Root
    layout: tuple[object, ...]


class Converter:
    """Copies values for one implementation and remembers them, and the memory behind them.

    Args:
        implementation: What has classes in the place of `reference`'s, by name.
        device: The device of tensors, or None where arrays stay NumPy arrays (`reference`).
        has_own_objects: Whether objects are a caller's own, of classes with the same names and
            with the same attributes, in place of the implementation's.
        negates: Whether tensors of signed numbers are lazy negations (`torch._neg_view`): their
            memory holds the other sign.
        written: Names of arguments that the function writes, which are never lazy negations.
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
        self._roots: dict[tuple[int, str], _Root] = {}
        self._arrays: list[_Shown] = []
        self._holders: list[tuple[str, Any, dict[Any, Any]]] = []
        self._made: dict[tuple[int, str], tuple[Any, Any]] = {}

    def convert(self, value: Any, path: str) -> Any:
        """Return the implementation's copy of a value; the copies of one object are one object.

        Args:
            value: What was drawn. Objects of classes that `reference` has become objects of the
                implementation's class of the same name, or a caller's own; a factory becomes
                what it makes, a dtype torch's; other objects of a caller (an input batch) are deep
                copies.
            path: The name of the value in messages; the last part decides the device.
        """
        if type(value) in PLAIN:  # most of what is carried
            return value
        if _is_dtype(value):
            return value if self.device is None else torch_dtype(np.dtype(value))
        key = id(value), self._place(value, path)
        if key not in self._made:
            # The drawn value is kept too: its id is no other value's as long as it lives.
            self._made[key] = value, self._convert(value, path)
        return self._made[key][1]

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget afterwards what is carried inside."""
        roots, made = dict(self._roots), dict(self._made)
        num_arrays, num_holders = len(self._arrays), len(self._holders)
        views = [(root, len(root.shown)) for root in roots.values()]
        try:
            yield
        finally:
            self._roots, self._made = roots, made
            del self._arrays[num_arrays:], self._holders[num_holders:]
            for root, number in views:
                del root.shown[number:]

    def _convert(self, value: Any, path: str) -> Any:
        converted: Any
        if isinstance(value, np.ndarray):
            return self._convert_array(value, path)
        if isinstance(value, list | tuple | dict) or type(value) is SimpleNamespace:
            converted = rebuilt(value, self._convert_children(value, path))
        elif isinstance(value, set):
            converted = set(value)
        elif isinstance(value, Factory):
            converted = value.make(self)
        elif is_reference_object(value):
            converted = self._convert_object(value, path)
        else:
            return copy.deepcopy(value)
        if _can_hold(converted):
            self._holders.append((path, converted, _held(converted)))
        return converted

    def _convert_children(self, value: Any, path: str) -> dict[Any, Any]:
        return {
            key: v if type(v) in PLAIN else self.convert(v, child_path(path, value, key))
            for key, v in children(value).items()
        }

    def _convert_object(self, value: Any, path: str) -> Any:
        """Return an object of `reference` as the implementation's, or as a caller's own."""
        fields = self._convert_children(value, path)
        name = type(value).__name__
        is_made = not self.has_own_objects or path == "self"  # a method's own is never a caller's
        if is_made and self.implementation.offers(name):
            return self.implementation.adapter.new(name, **fields)
        converted: Any = object.__new__(stub_class(type(value)))
        properties = {n: self.convert(v, f"{path}.{n}") for n, v in _properties(value).items()}
        vars(converted).update(fields, **properties)
        return converted

    def _place(self, value: object, path: str) -> str:
        """Return where an array is carried to, which its name decides, and so an object's class."""
        if not isinstance(value, np.ndarray):
            return "self" if path == "self" else ""
        name = path.rsplit(".", 1)[-1]
        if self.device is None or name in NUMPY_IN_BOTH_TWINS:
            return "numpy"
        return "cpu" if name.endswith("_cpu") or name == "cpu" else self.device

    def _convert_array(self, array: Array, path: str) -> Array | torch.Tensor:
        where = self._place(array, path)
        drawn = array
        while isinstance(drawn.base, np.ndarray):
            drawn = drawn.base
        if not drawn.flags.c_contiguous:
            raise ValueError(f"{path} lies in memory that is not C-contiguous; draw it in such")
        root = self._roots.get((id(drawn), where))
        if root is None:
            is_numpy = where == "numpy"
            negated = not is_numpy and self._negates(drawn, path, where)
            values = np.negative(drawn) if negated else drawn
            copied = self._copied(values)
            root = self._roots[id(drawn), where] = _Root(
                path,
                values,
                copied if is_numpy else _to_tensor(copied, where),
                copied if is_numpy or where == "cpu" else None,
                negated,
                drawn,
            )
        offset = array.__array_interface__["data"][0] - drawn.__array_interface__["data"][0]
        offset = offset // array.itemsize if array.size else 0
        strides = [stride // array.itemsize for stride in array.strides]
        root.shown.append((array.shape, offset, strides))
        converted: Array | torch.Tensor
        if isinstance(root.converted, torch.Tensor):
            converted = root.converted.as_strided(array.shape, strides, offset)
            if root.is_negated:
                converted = torch._neg_view(converted)  # noqa: SLF001  (torch names it so)
        else:
            data = root.converted.reshape(-1).view(np.uint8).data
            start = offset * array.itemsize
            converted = np.ndarray(array.shape, array.dtype, data, start, array.strides)
        self._arrays.append(_Shown(path, array, converted, root, _layout(converted)))
        return converted

    def _copied(self, drawn: Array) -> Array:
        """Return a copy of drawn memory; a subclass decides where it lies."""
        return drawn.copy()

    def _negates(self, array: Array, path: str, device: str) -> bool:
        """Tell whether an array becomes a lazy negation.

        Not NaNs on a GPU, which leaves their sign as it is.
        """
        if not self.negates or array.dtype not in NEGATED or _argument(path) in self.written:
            return False
        return device == "cpu" or array.dtype.kind != "f" or not np.isnan(array).any()

    @contextlib.contextmanager
    def idle_step(self) -> Iterator[None]:
        """Make all that arguments show 0 inside, as an idle step leaves a runner's buffers."""
        for root in self._roots.values():
            root.write(np.where(root.is_seen(), np.zeros((), root.drawn.dtype), root.drawn))
        yield
        for root in self._roots.values():
            root.write(root.drawn)

    def scribble(self) -> None:
        """Overwrite all arguments, as a caller may that uses its buffers again."""
        for root in self._roots.values():
            root.write(poisoned(root.drawn.shape, root.drawn.dtype))
        for _, holder, _ in self._holders:
            if isinstance(holder, list | dict | set):
                holder.clear()

    def owner(self, value: Any) -> str | None:
        """Return the argument that an object is, or in whose memory an array lies; None if none."""
        if not isinstance(value, np.ndarray | torch.Tensor):
            return next((path for path, holder, _ in self._holders if holder is value), None)
        if not address_of(value):
            return None
        address = address_of(value)
        return next((root.path for root in self._roots.values() if root.holds(address)), None)

    def changed(self, allowed: frozenset[str]) -> Difference | None:
        """Return the first difference of the carried arguments from what was drawn.

        Args:
            allowed: Names of arguments that the function may change.

        Returns:
            The first changed element of an argument, attribute of an object, or element of the
            memory around an argument; None where there is none.
        """
        return next(self._changes(allowed), None)

    def _changes(self, allowed: frozenset[str]) -> Iterator[Difference]:
        """Yield differences: of lists and objects, of arrays, of the memory around these."""
        for path, holder, held in self._holders:
            if _argument(path) not in allowed:
                yield from _holder_differences(path, held, _held(holder))
        changed = {id(root): root for root in self._roots.values() if not root.is_as_drawn()}
        for shown in self._arrays:
            is_touched = id(shown.root) in changed or _layout(shown.converted) != shown.layout
            if is_touched and _argument(shown.path) not in allowed:
                yield from _array_differences(shown.path, shown.drawn, shown.converted)
        for root in changed.values():
            unequal = (as_bytes(root.drawn) != as_bytes(root.converted)).any(axis=-1)
            if _argument(root.path) in allowed:
                unequal &= ~root.is_seen().reshape(-1)  # what it may write, and not the guard bands
            if unequal.any():
                where = f"memory around {root.path}"
                at = (int(np.flatnonzero(unequal)[0]),)
                yield Difference(Verdict.VALUE, where, at, "changed", "as it was")


def _layout(array: Array | torch.Tensor) -> tuple[object, ...]:
    """Return where an array lies, and how."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr(), array.shape, array.stride()
    return array.__array_interface__["data"][0], array.shape, array.strides


def _to_tensor(array: Array, device: str) -> torch.Tensor:
    """Return a flat tensor on a device with the bytes of a C-contiguous array."""
    data = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(torch_dtype(array.dtype))
    return data.to(device)


def _properties(value: object) -> dict[str, Any]:
    """Return the values of an object's properties, but for abstract ones."""
    found = {}
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, property):
                with contextlib.suppress(NotImplementedError):
                    found[name] = getattr(value, name)
    return found


def _is_dtype(value: Any) -> bool:
    """Tell whether a value is a NumPy dtype or scalar type that torch has too."""
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    if not (is_scalar_type or isinstance(value, np.dtype)):
        return False
    return isinstance(getattr(torch, np.dtype(value).name, None), torch.dtype)


def _can_hold(value: object) -> bool:
    """Tell whether a value has entries or attributes that a function could change."""
    if isinstance(value, type | tuple):
        return False
    return isinstance(value, list | dict | set) or hasattr(value, "__dict__")


def _held(holder: Any) -> dict[Any, Any]:
    """Return what a list, a dict, a set or an object holds now."""
    if isinstance(holder, set):
        return dict.fromkeys(holder)
    return dict(children(holder) if isinstance(holder, list | dict) else vars(holder))


def _argument(path: str) -> str:
    """Return the argument that a path begins with.

    >>> _argument("ubatch_slices[0].token_slice"), _argument("self.seq_lens"), _argument("out")
    ('ubatch_slices', 'self', 'out')
    """
    return path.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


def _holder_differences(
    path: str, before: dict[Any, Any], after: dict[Any, Any]
) -> Iterator[Difference]:
    """Yield the entries or attributes that are no longer the same objects."""
    if list(before) != list(after):
        yield Difference(Verdict.SHAPE, f"list({path})", None, list(after), list(before))
        return
    for key, value in after.items():
        if value is not before[key]:
            where = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"
            yield Difference(Verdict.IDENTITY, where, None, "another object", "as it was")


def _array_differences(
    path: str, drawn: Array, converted: Array | torch.Tensor
) -> Iterator[Difference]:
    """Yield where an array is no longer of its shape, or else its first changed element."""
    if tuple(converted.shape) != drawn.shape:
        yield Difference(Verdict.SHAPE, f"{path}.shape", None, tuple(converted.shape), drawn.shape)
        return
    index = first_unequal(drawn, converted)
    if index is not None:
        got = converted[index].item()
        yield Difference(Verdict.VALUE, path, index, got, drawn[index].item())
