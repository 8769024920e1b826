"""A cache of classes that are made at run time: the same key gives the same class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

_MADE: WeakValueDictionary[tuple[object, ...], type[Any]] = WeakValueDictionary()
"""The classes that are still referenced, by key."""


def make_once(key: tuple[object, ...], make: Callable[[], type[Any]]) -> type[Any]:
    """Return the class made for a key, or make it; unreferenced classes are dropped.

    A key contains the `id` of a class, not the class, since a metaclass may define equality. The
    class made for the key must keep that one alive, so that its `id` is not reused. A key that is
    not hashable is not cached.
    """
    try:
        made = _MADE.get(key)
    except TypeError:
        return make()
    if made is None:
        made = _MADE[key] = make()
    return made


def key_of_value(value: object) -> tuple[object, ...]:
    """Return a value's part of a key: equal values that print differently (1, True) differ."""
    if isinstance(value, dataclasses.Field):
        return (value,)  # it equals only itself, and its repr changes once it is in a class
    return value, repr(value)
