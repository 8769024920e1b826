"""The tree of a value: the entries of lists, tuples and dicts and the fields of objects, by path.

Arguments and results are such trees. A value without children is a leaf: a number, a string, an
array, a class, a set, or an object of an unknown class.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

PLAIN = frozenset({int, str, bool, float, type(None)})
"""Types of leaves that are the same for every implementation, and never change."""

_LEAVES = PLAIN | {np.ndarray, torch.Tensor, np.dtype, torch.dtype, type}

# Constants: to evaluate `list | tuple` in each call takes longer than `isinstance` itself.
_SEQUENCES = (list, tuple)
_ENTRIES = (list, tuple, dict, Mapping)
_ARRAYS = (np.ndarray, torch.Tensor)


def children(value: Any) -> Mapping[Any, Any]:
    """Return the children of a value by index, key or field name; none for a leaf.

    >>> children([7, 8]), children({"a": 1}), children(slice(2)), children(7)
    ({0: 7, 1: 8}, {'a': 1}, {'start': None, 'stop': 2, 'step': None}, {})
    """
    if type(value) in _LEAVES:
        return {}
    if isinstance(value, _SEQUENCES):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    fields = {name: getattr(value, name) for name in compared_fields(value)}
    return fields or (value if isinstance(value, Mapping) else {})


def compared_fields(value: Any) -> tuple[str, ...]:
    """Return the names of the attributes by which an object is compared; none for other values.

    >>> compared_fields(slice(3)), compared_fields(3)
    (('start', 'stop', 'step'), ())
    """
    if type(value) in _LEAVES or isinstance(value, type):
        return ()
    if isinstance(value, slice):
        return "start", "stop", "step"
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return _names_of_fields(kind)
    return tuple(vars(value) if kind is SimpleNamespace else getattr(kind, "compared", ()))


@functools.lru_cache(maxsize=256)  # classes are made while examples run
def _names_of_fields(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def has_entries(value: object) -> bool:
    """Return whether the children of a value are entries, `value[key]`, and not fields."""
    return isinstance(value, _ENTRIES)


def has_only_plain(value: object) -> bool:
    """Return whether a value is a list or tuple of `PLAIN` leaves; quick for long ones.

    >>> has_only_plain([1, None]), has_only_plain([1, [2]]), has_only_plain({"a": 1})
    (True, False, False)
    """
    return isinstance(value, _SEQUENCES) and PLAIN.issuperset(map(type, value))


def child_path(path: str, key: object, *, is_entry: bool) -> str:
    """Return the path of a child of a value, which is an entry or a field.

    >>> child_path("result", 1, is_entry=True), child_path("result", "stop", is_entry=False)
    ('result[1]', 'result.stop')
    """
    return f"{path}[{key!r}]" if is_entry else f"{path}.{key}"


def walk(value: Any, path: str, *, with_plain: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield a value and all its descendants with their paths, in pre-order.

    Args:
        value: The value.
        path: The path of the value itself.
        with_plain: Whether to walk lists and tuples whose entries are all of `PLAIN` types.

    >>> [path for path, _ in walk({"a": [5, 6]}, "result")]
    ['result', "result['a']", "result['a'][0]", "result['a'][1]"]
    >>> [path for path, _ in walk({"a": [5, 6]}, "result", with_plain=False)]
    ['result', "result['a']"]
    """
    yield path, value
    if not with_plain and has_only_plain(value):
        return
    is_entry = has_entries(value)
    for key, child in children(value).items():
        where = child_path(path, key, is_entry=is_entry)
        if type(child) in _LEAVES:  # most entries of lists
            yield where, child
        else:
            yield from walk(child, where, with_plain=with_plain)


def with_children(value: Any, parts: Mapping[Any, Any]) -> Any:
    """Return a value of the same kind with other children, by the keys that `children` uses.

    >>> (
    ...     with_children((1, 2), {0: 3, 1: 4}),
    ...     with_children(slice(2), {"start": 1, "stop": 5, "step": None}),
    ... )
    ((3, 4), slice(1, 5, None))
    """
    if isinstance(value, Mapping):
        return dict(parts)
    if isinstance(value, list | tuple):
        return list(parts.values()) if isinstance(value, list) else tuple(parts.values())
    return slice(*parts.values()) if isinstance(value, slice) else type(value)(**parts)


def with_child(value: Any, key: Any, child: Any) -> Any:
    """Return a copy of a value with one child replaced, without any validation.

    >>> with_child((1, 2), 0, 9), with_child({"a": 1}, "a", 9)
    ((9, 2), {'a': 9})
    """
    if has_entries(value):
        return with_children(value, {**children(value), key: child})
    found = copy.copy(value)
    object.__setattr__(found, key, child)  # for frozen dataclasses too
    return found


def with_replaced(value: Any, path: str, replace: Callable[[str, Any], Any]) -> Any:
    """Return a value with some parts replaced; other parts are shared, and not validated.

    Args:
        value: The value.
        path: The path of the value itself.
        replace: Returns what replaces a part, from its path and the part; the part itself if it
            stays.

    >>> one = [1]
    >>> with_replaced((one, {"a": one}), "x", lambda path, part: 3 if part is one else part)
    (3, {'a': 3})
    """
    replaced = replace(path, value)
    if replaced is not value:
        return replaced
    is_entry = has_entries(value)
    for key, child in children(value).items():
        replaced = with_replaced(child, child_path(path, key, is_entry=is_entry), replace)
        if replaced is not child:
            value = with_child(value, key, replaced)
    return value


def map_children(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the children of a value, and return the new value; a leaf as it is.

    >>> map_children(str, [1, (2, 3)])
    ['1', '(2, 3)']
    """
    inside = children(value)
    return with_children(value, {k: change(v) for k, v in inside.items()}) if inside else value


def copied(value: Any) -> Any:
    """Return a value with copies of its NumPy arrays.

    >>> array = np.zeros(1)
    >>> copied((array, 5))[0] is array
    False
    """
    return value.copy() if isinstance(value, np.ndarray) else map_children(copied, value)


def arrays_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays and tensors of a value, with their paths.

    >>> [path for path, _ in arrays_in([torch.zeros(1), (3, np.zeros(2))], "result")]
    ['result[0]', 'result[1][1]']
    """
    parts = walk(value, path, with_plain=False)
    return ((where, inner) for where, inner in parts if is_array(inner))


def is_array(value: object) -> bool:
    """Return whether a value is a NumPy array or a torch tensor."""
    return isinstance(value, _ARRAYS)


def is_object(value: object) -> bool:
    """Return whether a value has fields: those of a dataclass, or those listed in `compared`."""
    return bool(compared_fields(value)) and not isinstance(value, slice)


def is_reference_object(value: object) -> bool:
    """Return whether a value is an object of one of `reference`'s dataclasses."""
    is_object = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_object and type(value).__module__.startswith("reference")


def is_immutable(value: object) -> bool:
    """Return whether an object is of a frozen dataclass, so that an equal object can replace it.

    >>> import reference
    >>> is_immutable(reference.KVCacheSpec(16)), is_immutable(reference.CacheConfig())
    (True, False)
    """
    parameters = getattr(type(value), "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False))
