"""Classes that are made once: whoever asks for the same again gets the same."""

from collections.abc import Callable, Hashable
from dataclasses import Field
from typing import Any, Final
from weakref import WeakValueDictionary

_MADE: Final[WeakValueDictionary[tuple[Hashable, ...], type[Any]]] = WeakValueDictionary()
"""The classes that were made and are in use, by what they were made of.

A class stands there as its `id`: what was made of it keeps it, so that no other class gets that.
"""


def make_once(key: tuple[Any, ...], make: Callable[[], type[Any]]) -> type[Any]:
    """Return the class that was made for a key, or make it; for one without a hash, always anew."""
    try:
        made = _MADE.get(key)
    except TypeError:
        return make()
    return _MADE.setdefault(key, make()) if made is None else made


def describe(value: Any) -> tuple[Any, ...]:  # noqa: ANN401  (a type or a default)
    """Return what stands for a value in a key: what is equal may still differ, as 0 and False."""
    if isinstance(value, Field):
        return (value,)  # it equals itself alone, and reads unlike once it is in a class
    return type(value), value, repr(value)
