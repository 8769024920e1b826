"""Hypothesis' strategies, made once for the same arguments: `import cached as st`.

Hypothesis validates each new strategy and finds out what it is made of, which takes two to ten
times as long as to draw from it. So these keep the latest strategies, where all arguments are plain
values, which are drawn alike where they are equal, or strategies, each of which is another one.
Booleans with other odds than one in two are here too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import (
    DrawFn,
    SearchStrategy,
    builds,
    data,
    deferred,
    floats,
    none,
    nothing,
    permutations,
    runner,
)

from conformance.coverage.presets import Preset

__all__ = [
    "MOSTLY",
    "RARELY",
    "SOMETIMES",
    "DrawFn",
    "SearchStrategy",
    "booleans",
    "builds",
    "composite",
    "data",
    "deferred",
    "floats",
    "integers",
    "just",
    "lists",
    "none",
    "nothing",
    "one_of",
    "permutations",
    "runner",
    "sampled_from",
    "sets",
    "tuples",
]

P = ParamSpec("P")
T = TypeVar("T")

MAX_CACHED: Final = 1024
"""The most strategies of one function that are stored."""

LONGEST: Final = 32
"""The most entries of an argument for which strategies are stored."""

_PLAIN: Final = frozenset({bool, int, str, type, type(None), Preset})
"""The types of values that are no other objects than those that are equal to them."""


def cached(make: Callable[P, SearchStrategy[T]]) -> Callable[P, SearchStrategy[T]]:
    """Return a function that makes a strategy once for the same plain arguments.

    >>> ints = cached(st.integers)
    >>> ints(0, 3) is ints(0, 3), ints(0, 1) is ints(False, True)
    (True, False)
    """
    cache: dict[object, SearchStrategy[T]] = {}

    @functools.wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> SearchStrategy[T]:
        key = (_key(args), *(_key(item) for item in kwargs.items()))
        if None in key:
            return make(*args, **kwargs)
        found = cache.get(key)
        if found is None:
            found = cache[key] = make(*args, **kwargs)
            if len(cache) > MAX_CACHED:
                del cache[next(iter(cache))]
        return found

    return get


def _key(value: Any) -> object:
    """Return what a plain value and its type are known by, a strategy itself; None for others.

    >>> _key((1, True)) == _key((True, 1)), _key([]), _key(({},))
    (False, None, None)
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, SearchStrategy):
        return value
    if kind is tuple and len(value) <= LONGEST:
        keys = tuple(map(_key, value))
    elif getattr(kind, "__dataclass_params__", None) and kind.__dataclass_params__.frozen:
        keys = (kind, *[_key(v) if type(v) in _PLAIN else None for v in vars(value).values()])
    else:
        return None
    return None if None in keys else keys


booleans = functools.cache(st.booleans)
integers = cached(st.integers)
just = cached(st.just)
lists = cached(st.lists)
one_of = cached(st.one_of)
sampled_from = cached(st.sampled_from)
sets = cached(st.sets)
tuples = cached(st.tuples)


RARELY = sampled_from((False, False, False, True))
"""True one time in four; what is simpler is False."""

SOMETIMES = sampled_from((False, False, True))
"""True one time in three; what is simpler is False."""

MOSTLY = sampled_from((True, True, False))
"""True two times in three; what is simpler is True."""


def composite(make: Callable[Concatenate[DrawFn, P], T]) -> Callable[P, SearchStrategy[T]]:
    """Return `st.composite` of a function, which keeps what it made too."""
    return cached(st.composite(make))
