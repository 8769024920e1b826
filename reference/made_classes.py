"""Classes that are made once: whoever asks for the same again gets the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

_MADE: WeakValueDictionary[tuple[object, ...], type[Any]] = WeakValueDictionary()
"""The classes that are in use, by what they were made of."""


def make_once(key: tuple[object, ...], make: Callable[[], type[Any]]) -> type[Any]:
    """Return the class that was made for this key, while anyone uses it; else make it.

    In a key a class stands as its `id`, since classes may say that they equal others. The class
    made for the key must keep that one alive, so that its `id` is not given to another meanwhile.
    A key that cannot be one, because a part of it has no hash, is not remembered.
    """
    try:
        made = _MADE.get(key)
    except TypeError:
        return make()
    if made is None:
        made = _MADE[key] = make()
    return made


def key_of_value(value: object) -> tuple[object, ...]:
    """Return what stands for a value in a key: equal values that print unlike (1, True) differ."""
    if isinstance(value, dataclasses.Field):
        return (value,)  # it equals itself alone, and prints unlike once a class has it
    return value, repr(value)
