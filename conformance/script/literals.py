"""Writes values as Python source: arguments as they were drawn, for a script that stands alone.

The source names a twin as the script does: `m` is the twin's module,
`array(values, dtype)` makes its arrays.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.array_layout import owner_of
from conformance.comparison import NUMPY_IN_BOTH_TWINS
from conformance.factories import Device, Factory
from conformance.script.arrays import (
    MOST_ELEMENTS,
    Array,
    UnwritableError,
    elements,
    is_finite,
    is_odd,
    part_of,
    sliced,
    strided,
)
from conformance.strategies.arrays import poisoned


@dataclasses.dataclass
class Writer:
    """Writes values that may share objects and memory.

    Attributes:
        is_harness: Whether the script has the harness at hand: its factories, its converter.
        lines: What stands before the expressions: objects that stand in several places.
        imports: What the harness' own classes are imported by.
        has_bits: Whether an array is written by its bits, or of a dtype that NumPy has not.
        memories: The names of the memories that reach beyond their arrays, by what they are.
        poisons: What poison is, by its name.
        has_strided: Whether an array lies in its memory as no slices say.

    >>> writer, value = Writer(), {"sizes": (1, None), "starts": np.array([0, 3], np.int32)}
    >>> writer.count(value, "")
    >>> writer.write(value, "")
    "{'sizes': (1, None), 'starts': array([0, 3], 'int32')}"
    """

    is_harness: bool = False
    lines: list[str] = dataclasses.field(default_factory=list)
    imports: set[str] = dataclasses.field(default_factory=set)
    has_bits: bool = False
    memories: dict[str, str] = dataclasses.field(default_factory=dict)
    poisons: dict[str, int] = dataclasses.field(default_factory=dict)
    has_strided: bool = False
    _visits: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)
    _names: dict[tuple[int, str], str] = dataclasses.field(default_factory=dict)
    _memories: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)
    _seen: list[Any] = dataclasses.field(default_factory=list)

    def count(self, value: Any, name: str) -> None:
        """Look at a value before anything is written: what is met twice gets a name.

        Args:
            value: It.
            name: The argument or field that it is.
        """
        if type(value) is tuple:
            for inner in value:
                self.count(inner, name)
        if not can_be_shared(value):
            return
        key = self._key(value, name)
        self._visits[key] = self._visits.get(key, 0) + 1
        if self._visits[key] > 1:
            return
        self._seen.append(value)  # its id is no other value's as long as it lives
        if isinstance(value, np.ndarray):
            owner = id(owner_of(value)), self._maker(name)
            self._memories[owner] = self._memories.get(owner, 0) + 1
        for field, inner in _inside(value):
            self.count(inner, field or name)

    def write(self, value: Any, name: str) -> str:
        """Return a value as an expression; `count` has seen it before.

        Args:
            value: It.
            name: The argument or field that it is, which decides what makes an array.

        Raises:
            UnwritableError: A value that this source cannot say.
        """
        if not can_be_shared(value):
            return self._plain(value, name)
        key = self._key(value, name)
        if key not in self._names:
            text = self._shared(value, name)
            if self._visits.get(key, 0) < 2:
                return text
            self._name(key, name if name.isidentifier() else "value", text)
        return self._names[key]

    def _name(self, key: tuple[int, str], stem: str, text: str) -> None:
        self._names[key] = f"{stem}_{len(self._names)}"
        self.lines.append(f"{self._names[key]} = {text}")

    def _maker(self, name: str) -> str:
        """Return what makes an array of a name: the twin, or NumPy for both twins."""
        return "np.array" if name in NUMPY_IN_BOTH_TWINS or self.is_harness else "array"

    def _key(self, value: Any, name: str) -> tuple[int, str]:
        return id(value), self._maker(name) if isinstance(value, np.ndarray) else ""

    def _plain(self, value: Any, name: str) -> str:
        """Write a value that is the same wherever it stands."""
        kind = type(value)
        if value is None or kind in {bool, int, str, bytes, complex}:
            return repr(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if kind is tuple:
            inside = [self.write(inner, name) for inner in value]
            return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
        if kind is slice:
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(self._plain(part, name) for part in parts)})"
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and not is_odd(value.dtype):
            inside = [self._plain(value.item(), name)]
            return f"np.{kind.__name__.rstrip('_')}({inside[0]})"
        return self._named(value)

    def _named(self, value: Any) -> str:
        """Write a dtype, a class or a member of an enum by its name."""
        kind = type(value)
        if isinstance(value, Device):
            return self._by_side("None", "'cpu'", "DEVICE", value)
        if isinstance(value, np.dtype) and value.names is None and value.kind not in "OSU":
            self.has_bits |= is_odd(value)
            return self._dtype(f"np.dtype({value.name!r})", value.name)
        if (
            isinstance(value, type)
            and issubclass(value, np.generic)
            and hasattr(np, value.__name__)
        ):
            return self._dtype(f"np.{value.__name__}", np.dtype(value).name)
        if isinstance(value, enum.Enum) and kind.__module__.startswith("reference"):
            return f"reference.{kind.__name__}.{value.name}"
        if isinstance(value, type) and value.__module__.startswith("reference"):
            return f"reference.{value.__name__}"
        if isinstance(value, type) and value.__module__ == "builtins":
            return value.__name__
        raise UnwritableError(f"a {kind.__qualname__} has no short form in Python")

    def _dtype(self, numpy: str, name: str) -> str:
        return self._by_side(numpy, f"torch.{name}", numpy, None)

    def _by_side(self, ours: str, theirs: str, in_harness: str, value: Any) -> str:
        """Write what is another thing for each twin, which the harness converts by itself."""
        if not self.is_harness:
            return f"({ours} if m is reference else {theirs})"
        if value is not None:
            self.imports.add("from conformance.factories import DEVICE")
        return in_harness

    def _shared(self, value: Any, name: str) -> str:  # noqa: PLR0911  # one for each kind
        """Write an object that can stand in several places."""
        kind = type(value)
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if kind is list:
            return f"[{', '.join(self.write(inner, name) for inner in value)}]"
        if kind is dict:
            entries = (
                (self._plain(k, ""), self.write(v, k if isinstance(k, str) else name))
                for k, v in value.items()
            )
            return f"{{{', '.join(f'{k}: {v}' for k, v in entries)}}}"
        if kind in {set, frozenset}:
            inside = sorted(self._plain(inner, name) for inner in value)
            return f"{kind.__name__}([{', '.join(inside)}])"
        if kind is SimpleNamespace:
            return f"SimpleNamespace({self._fields(vars(value))})"
        if dataclasses.is_dataclass(value) and kind.__module__.startswith("reference"):
            return f"m.{kind.__name__}({self._fields(_worth_saying(value))})"
        if isinstance(value, Factory) and self.is_harness and "<locals>" not in kind.__qualname__:
            if not set(vars(value)) <= set(inspect.signature(kind).parameters):
                raise UnwritableError(f"a {kind.__qualname__} is not made of its attributes")
            self.imports.add(f"from {kind.__module__} import {kind.__name__}")
            return f"{kind.__name__}({self._fields(vars(value))})"
        raise UnwritableError(f"a {kind.__qualname__} has no short form in Python")

    def _fields(self, fields: dict[str, Any]) -> str:
        return ", ".join(f"{name}={self.write(value, name)}" for name, value in fields.items())

    def _array(self, array: Array, name: str) -> str:
        """Write an array, in its memory where there is more of that than the array shows."""
        make, owner, dtype = self._maker(name), owner_of(array), array.dtype.name
        self.has_bits |= is_odd(array.dtype) or not (is_finite(owner) and is_finite(array))
        if not array.size:
            return f"{make}({elements(array)}, {dtype!r})"
        is_alone = self._memories.get((id(owner), make), 1) == 1
        is_whole = array.shape == owner.shape and array.strides == owner.strides
        if is_alone and is_whole and owner.flags.c_contiguous:
            return f"{make}({elements(array)}, {dtype!r})"
        key = id(owner), make
        if key not in self._names:
            memory = f"{make}({self._with_poison(owner)}, {owner.dtype.name!r})"
            self._name(key, "memory", memory)
            self.memories.setdefault(f"memory around {name}", self._names[key])
        part = part_of(owner, array)
        if part is not None:
            return f"{self._names[key]}[{sliced(part)}]"
        self.has_strided = True
        return f"strided({self._names[key]}, {strided(owner, array)})"

    def _with_poison(self, memory: Array) -> str:
        """Write a memory; the poison of its guard bands has a name."""
        if memory.dtype.kind not in "iu" or memory.size > MOST_ELEMENTS:
            return elements(memory)
        poison = poisoned((1,), memory.dtype).item()
        name = f"X{memory.dtype.name.removeprefix('int')}"
        text = re.sub(rf"(?<!\d){poison}(?!\d)", name, repr(memory.tolist()))
        if name in text:
            self.poisons[name] = poison
        return text


def can_be_shared(value: Any) -> bool:
    """Tell whether it matters that a value is one object where it stands twice."""
    kind = type(value)
    if isinstance(value, np.ndarray | Factory) and not isinstance(value, Device):
        return True
    if isinstance(value, type | enum.Enum):
        return False
    is_object = dataclasses.is_dataclass(value) and kind.__module__.startswith("reference")
    return kind in {list, dict, set, frozenset, SimpleNamespace} or is_object


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what stands in an object, with the names of fields, "" where there are none."""
    if isinstance(value, list):
        yield from (("", inner) for inner in value)
    elif isinstance(value, dict):
        yield from ((k if isinstance(k, str) else "", v) for k, v in value.items())
    elif not isinstance(value, np.ndarray | set | frozenset):
        yield from vars(value).items()


def _worth_saying(value: Any) -> dict[str, Any]:
    """Return an object's fields, but for those that are what they are if nobody says them."""
    defaults = {field.name: field.default for field in dataclasses.fields(value)}
    return {
        name: inner
        for name, inner in vars(value).items()
        if not (inner is None or isinstance(inner, bool)) or inner is not defaults.get(name)
    }
