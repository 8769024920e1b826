"""Unexpected argument values: objects with hostile methods, subclasses, numbers out of range."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any, Final, NoReturn

import numpy as np

from conformance.targets.conversion import Converter
from conformance.targets.factories import Factory


class HostilityError(Exception):
    """The exception of a hostile object, which a function may pass on to its caller."""


def _hostile(*_: object, **__: object) -> NoReturn:
    raise HostilityError("a hostile method was called")


class LyingIndex:
    """An index that has another value each time."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def __index__(self) -> int:
        self._next += 1 << 20
        return self._next

    __int__ = __index__


class HostileAttributes:
    """An object that raises for every attribute."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what `copy` and `hasattr` look for
            raise AttributeError(name)
        raise HostilityError(name)


HOSTILE: Final = {
    "__index__": ("__index__", "__int__", "__float__", "__bool__"),
    "__len__": ("__len__", "__iter__", "__getitem__", "__bool__"),
    "__eq__": ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
    "__repr__": ("__repr__", "__str__", "__format__"),
}
"""The methods that raise in each class of hostile objects, by the first one: an index, a sequence,
an object that is compared, an object that is printed.
"""


def _hostile_class(methods: tuple[str, ...]) -> type:
    return type("Hostile", (), {"__slots__": (), **dict.fromkeys(methods, _hostile)})


SUBCLASSES: Final = {
    kind: type(f"{kind.__name__.capitalize()}Subclass", (kind,), {})
    for kind in (list, dict, int, str)
}
"""Subclasses of builtin classes, which behave like these."""


def _itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _itself_in_dict() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    found["a"] = found
    return found


OBJECTS: dict[str, Callable[[], Any]] = {
    **{f"hostile {name}": _hostile_class(methods) for name, methods in HOSTILE.items()},
    "lying __index__": LyingIndex,
    "hostile attributes": HostileAttributes,
    "object()": object,
    "list in itself": _itself,
    "dict in itself": _itself_in_dict,
    "generator": lambda: iter([1, 2]),
    "range": lambda: range(3),
    "class": lambda: int,
    "function": lambda: len,
    "masked array": lambda: np.ma.masked_array([1, 2], [True, False], fill_value=0),
    "structured array": lambda: np.zeros(2, [("a", np.int32), ("b", np.int64)]),
    "byte-swapped array": lambda: np.array([1, 2], np.dtype(np.int32).newbyteorder()),
    "read-only array": lambda: _read_only(np.array([1, 2])),
    "array of objects": lambda: np.array([1, None], object),
    "array of texts": lambda: np.array(["a", "b"]),
    "0-dim array": lambda: np.array(3),
    "float array": lambda: np.array([1.0, np.nan]),
    "uint64 array": lambda: np.array([2**64 - 1, 1], np.uint64),
    "datetime64": lambda: np.datetime64("2026-01-01"),
    "void scalar": lambda: np.zeros(1, "V4")[0],
}
"""Makers of objects, by name."""


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@dataclasses.dataclass(frozen=True, eq=False)
class StrangeObject(Factory):
    """An object of `OBJECTS`, which both twins get as an argument."""

    name: str
    made: list[Any] = dataclasses.field(default_factory=list, repr=False)

    def make(self, converter: Converter) -> Any:
        """Return the object, the same in both twins."""
        del converter
        if not self.made:
            self.made.append(OBJECTS[self.name]())
        return self.made[0]


@dataclasses.dataclass(frozen=True, eq=False)
class OfSubclass(Factory):
    """A list, dict, int or string, converted to a subclass."""

    value: Any
    path: str

    def make(self, converter: Converter) -> Any:
        """Return the value as an object of the subclass."""
        converted = converter.convert(self.value, self.path)
        subclass = SUBCLASSES.get(type(converted))
        return converted if subclass is None else subclass(converted)


INTS = (-1, 0, 1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**63, 2**64)
INTS += (-(2**63) - 1, 10**30, -2)


MAX_CHARACTERS = 1_000_000
"""The approximate limit of the length of a string that is repeated."""


def other_value(random: Random, value: Any, path: str) -> Any:
    """Return a mutation of a value that is not an array, or an unrelated value."""
    if isinstance(value, bool | np.bool_):
        likely: list[Any] = [not value, np.bool_(value), int(value)]
    elif isinstance(value, int | np.integer):
        near = [int(value) + random.choice((-2, -1, 1, 2)), int(value) * 2, -int(value)]
        scalars = [np.int64(value)] if abs(value) < 2**63 else []
        likely = [*near, *near, random.choice(INTS), random.choice(INTS), *scalars]
    elif isinstance(value, float):
        likely = [float("nan"), float("inf"), -value, value * 2, 0.0, np.float32(1.5), -1e308]
    elif isinstance(value, str):
        many = min(1000, 1 + MAX_CHARACTERS // (1 + len(value)))
        likely = ["", value + "x", value[:-1], value.upper(), value * many, "0", "\0", "é"]
    elif isinstance(value, list | tuple):
        likely = _other_lists(random, value)
    elif isinstance(value, dict):
        likely = [{}, dict(list(value.items())[:-1]), list(value), {**value, "new": None}]
        likely.append({**value, random.choice((1, None, "", (1,))): next(iter(value.values()), 1)})
    elif isinstance(value, slice):
        ends = [value.start, value.stop, value.step, random.choice(INTS), None, 1.5, True]
        likely = [slice(*(random.choice(ends) for _ in range(3))) for _ in range(4)]
        likely += [slice(random.choice(INTS), random.choice(INTS)) for _ in range(2)]
    else:
        likely = []
    if likely and random.random() < 0.7:
        return random.choice(likely)
    anything = [None, True, False, 1.0, float("nan"), "", "text", b"bytes", [], (), {}, 1j, set()]
    anything += [random.choice(INTS), np.uint64(2**63), np.float32(1), np.bool_(1), np.int8(-1)]
    anything += [slice(None), [1], [[1]], Ellipsis, np.zeros(0, np.int32), np.zeros((2, 2))]
    anything += [OfSubclass(value, path)] * 2
    anything += [StrangeObject(random.choice(list(OBJECTS))) for _ in range(8)]
    return random.choice(anything)


def _other_lists(random: Random, value: Any) -> list[Any]:
    entries = list(value)
    kind = type(value)
    found = [kind(), kind(entries[:-1]), kind(entries * 2), kind(reversed(entries))]
    found += [tuple(entries) if kind is list else entries, kind([*entries, None])]
    if entries:
        entry = random.choice(entries)
        found += [kind([*entries, entry]), kind([entry, *entries])]
    return found
