"""Cache classes that are made at run time: the same key gives the same class."""

from collections.abc import Callable, Hashable
from dataclasses import Field
from typing import Any, Final
from weakref import WeakValueDictionary

_MADE: Final[WeakValueDictionary[tuple[Hashable, ...], type[Any]]] = WeakValueDictionary()
"""The classes that are still referenced, by key.

A key contains the `id` of a class. The class made for the key keeps that class alive, so that its
`id` is not reused.
"""


def make_once(key: tuple[Any, ...], make: Callable[[], type[Any]]) -> type[Any]:
    """Return the class made for a key, or make it; a key without a hash is not cached."""
    try:
        made = _MADE.get(key)
    except TypeError:
        return make()
    return _MADE.setdefault(key, make()) if made is None else made


def describe(value: Any) -> tuple[Any, ...]:
    """Return a value's part of a key: equal values that print differently (1, True) differ."""
    if isinstance(value, Field):
        return (value,)  # it equals only itself, and its repr changes once it is in a class
    return type(value), value, repr(value)
