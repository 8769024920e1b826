"""Values: the one walker through the parts of arguments and results.

A *path* leads to a part: `("common_attn_metadata", "seq_lens")`. Parts are the entries of dicts,
lists and tuples, the ends of slices, and the fields of objects.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[Any]
Path: TypeAlias = tuple[Any, ...]

SLICE: Final = ("start", "stop", "step")


def is_object(value: Any) -> bool:
    """Return whether a value is an object whose fields are its parts.

    >>> is_object(SimpleNamespace(a=1)), is_object(int), is_object("a")
    (True, False, False)
    """
    return _is_object_class(type(value))  # type: ignore[arg-type]  # a class is hashable


@functools.cache  # these are asked millions of times in a run
def _is_object_class(cls: type[Any]) -> bool:
    if issubclass(cls, type | str | int | float | list | tuple | dict):
        return False
    has_fields = dataclasses.is_dataclass(cls) or hasattr(cls, "compared")
    return has_fields or issubclass(cls, SimpleNamespace | Stub)


@functools.cache
def _names_of_fields(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


class Drawn:
    """Data of the harness within arguments, which keeps its class in each twin."""

    classes: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Note the class, so that stored cases may have instances of it."""
        Drawn.classes[cls.__name__] = cls


class Stub:
    """An object with the attributes of another, of a class with the same name."""


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an object; those of a dataclass without what it caches in itself.

    A class of the harness's stubs lists those that are compared in `compared`.
    """
    if hasattr(type(value), "compared"):
        return {name: getattr(value, name) for name in type(value).compared}
    if dataclasses.is_dataclass(type(value)):
        names = _names_of_fields(type(value))  # type: ignore[arg-type]  # likewise
        own = getattr(value, "__dict__", {})
        if len(own) >= len(names) and all(map(own.__contains__, names)):
            return {name: own[name] for name in names}
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return dict(vars(value))


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a value's parts; none if it has no parts.

    >>> parts({"a": 1}), parts([7]), parts(slice(1, 2)), parts(3)
    ([('a', 1)], [(0, 7)], [('start', 1), ('stop', 2), ('step', None)], [])
    """
    if value is None or isinstance(value, int | np.ndarray | torch.Tensor | str):  # most values
        return []
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if isinstance(value, slice):
        return [(name, getattr(value, name)) for name in SLICE]
    return list(fields_of(value).items()) if is_object(value) else []


def rebuilt(value: Any, new: list[tuple[Any, Any]], cls: type[Any] | None = None) -> Any:
    """Return a value of the same kind with other parts; an object is of class `cls`, if given."""
    if isinstance(value, dict):
        return (cls or type(value))(new)
    if isinstance(value, list | tuple):
        return (cls or type(value))([part for _, part in new])
    if isinstance(value, slice):
        return slice(*(part for _, part in new))
    new_class: Any = cls or type(value)
    made = new_class.__new__(new_class)
    for name, part in new:
        object.__setattr__(made, name, part)  # the class may be frozen
    return made


def get(value: Any, path: Path) -> Any:
    for key in path:
        is_entry = isinstance(value, dict | list | tuple)
        value = value[key] if is_entry else getattr(value, key)
    return value


def put(value: Any, path: Path, new: Any) -> Any:
    """Return a value with another part at a path; `GONE` removes it.

    >>> put({"a": [1, 2]}, ("a", 1), 3)
    {'a': [1, 3]}
    """
    if not path:
        return new
    found = [(k, put(part, path[1:], new) if k == path[0] else part) for k, part in parts(value)]
    return rebuilt(value, [(key, part) for key, part in found if part is not GONE])


def set_part(value: Any, path: Path, new: Any) -> None:
    parent = get(value, path[:-1])
    if isinstance(parent, dict | list):
        parent[path[-1]] = new
    else:
        object.__setattr__(parent, path[-1], new)  # the class may be frozen


GONE: Final = object()
"""In `put`: the part is removed."""


def places(value: Any, path: Path = (), *, most: int = 12) -> Iterator[tuple[Path, Any]]:
    """Yield the path and value of each part, recursively; of a long list a few entries only."""
    yield path, value
    inside = parts(value)
    if len(inside) > most and not is_object(value):
        inside = inside[: most // 2] + inside[-(most // 2) :]
    for key, part in inside:
        yield from places(part, (*path, key), most=most)


def arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays and tensors within a value, in order; one that occurs twice, twice."""
    if isinstance(value, np.ndarray | torch.Tensor):
        yield value
    elif not isinstance(value, slice | str | int):
        for _, part in parts(value):
            yield from arrays(part)


def objects(value: Any) -> Iterator[Any]:
    """Yield the lists, dicts and objects within a value, which may be the same as others."""
    if isinstance(value, list | dict) or is_object(value):
        yield value
    for _, part in parts(value) if not isinstance(value, slice) else ():
        yield from objects(part)


def root_of(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def copied(value: Any, *, has_numpy_scalars: bool = False) -> Any:
    """Return a deep copy: one object that occurs twice stays one, views of one memory stay so.

    Ints become NumPy's, if wanted, apart from large ones and those of slices.
    """
    made: dict[int, tuple[Any, Any]] = {}

    def once(value: Any) -> Any:
        if has_numpy_scalars and type(value) is int and abs(value) < 2**31:
            return np.int64(value)
        if value is None or isinstance(value, str | int | float | type | slice):
            return value
        if id(value) not in made:
            made[id(value)] = value, anew(value)
        return made[id(value)][1]

    def anew(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            root = root_of(value)
            if root is value:
                return value.copy(order="K")
            start = value.__array_interface__["data"][0] - root.__array_interface__["data"][0]
            flat = once(root).reshape(-1, order="A").view(np.uint8)
            return np.ndarray(value.shape, value.dtype, flat.data, start, value.strides)
        if isinstance(value, list | tuple | dict) or is_object(value):
            return rebuilt(value, [(key, once(part)) for key, part in parts(value)])
        return copy.copy(value)

    return once(value)


def fingerprint(value: Any) -> str:
    """Return a text that tells values apart.

    >>> fingerprint([1, None])
    '[0: 1, 1: None]'
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    inside = parts(value)
    texts = (f"{key!r}: {fingerprint(part)}" for key, part in inside)
    if not inside and is_object(value):
        return type(value).__name__  # its `repr` may read fields that a refusal has removed
    return f"[{', '.join(texts)}]" if inside else repr(value)


def text_of(path: Path) -> str:
    """Return a path as an expression.

    >>> text_of(("ubatch_slices", 2, "token_slice", "start"))
    'ubatch_slices[2].token_slice.start'
    """
    found = ""
    for key in path:
        found += f".{key}" if isinstance(key, str) else f"[{key!r}]"
    return found.removeprefix(".")
