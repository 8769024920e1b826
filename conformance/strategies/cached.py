"""Hypothesis strategies, memoized by their arguments: `import cached as st`.

Hypothesis validates and analyses each new strategy, which takes two to ten times as long as a draw
from it. So these functions keep the latest strategies whose arguments are all plain values,
compared by type and value, or strategies, compared by identity. Biased booleans are here too.
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
"""The most entries of a tuple argument for which strategies are stored."""

_PLAIN: Final = frozenset({bool, int, str, type, type(None), Preset})
"""Types whose equal values are interchangeable."""


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
    """Return the cache key of a plain value or a strategy; None for others.

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
"""True one time in four; shrinks to False."""

SOMETIMES = sampled_from((False, False, True))
"""True one time in three; shrinks to False."""

MOSTLY = sampled_from((True, True, False))
"""True two times in three; shrinks to True."""


def composite(make: Callable[Concatenate[DrawFn, P], T]) -> Callable[P, SearchStrategy[T]]:
    """Return the memoized `st.composite` of a function."""
    return cached(st.composite(make))
