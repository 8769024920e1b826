"""Validates the names in an adapter's tables: a mistyped name would silently convert nothing."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import fast
import reference
from conformance.adapters.base import Adapter


def mistyped(adapter: Adapter) -> Iterator[str]:  # noqa: C901  # one table after the other
    """Yield a message for each name in an adapter's tables that does not exist."""
    for table in ("names", "parameters", "unsupported"):
        for name in getattr(adapter, table):
            if not _is_ours(name):
                yield f"has {name!r} in {table}, which is not a name in reference"
    for ours, theirs in adapter.names.items():
        try:
            adapter.find(ours)
        except AttributeError:
            yield f"maps {ours} to {theirs!r} in names, which {adapter.module.__name__} lacks"
    for table in ("parameters", "unsupported"):
        for function, named in getattr(adapter, table).items():
            known = {*_parameters(reference, function), *_parameters(fast, function)}
            for name in named.keys() - known:
                yield f"has {name!r} in {table}, which is not a parameter of {function}"
    for deviation in adapter.deviations:
        if not _is_ours(deviation.function):
            name = repr(deviation.function)
            yield f"declares a deviation of {name}, which is not a name in reference"
    fields = {field for name in reference.__all__ for field in _fields(getattr(reference, name))}
    for name in sorted(adapter.lacks - fields):
        yield f"has {name!r} in lacks, which is not a field or parameter in reference"


def _is_ours(name: str) -> bool:
    """Return whether a function, class or method of `reference` has this name."""
    try:
        operator.attrgetter(name)(reference)
    except AttributeError:
        return False
    return name.partition(".")[0] in reference.__all__


def _parameters(module: ModuleType, function: str) -> Iterable[str]:
    """Return the parameters of a function of one of the twins; none if it has no signature."""
    try:
        return inspect.signature(operator.attrgetter(function)(module)).parameters
    except (AttributeError, TypeError, ValueError):
        return ()


def _fields(found: Any) -> set[str]:
    """Return the attributes of a class's objects, or the parameters of a function."""
    if not isinstance(found, type):
        return set(inspect.signature(found).parameters) if inspect.isfunction(found) else set()
    names = set(dir(found))
    for base in found.__mro__:
        names |= vars(base).get("__annotations__", {}).keys()
        made: Any = vars(base).get("__init__")
        if inspect.isfunction(made):
            names |= {*made.__code__.co_names, *made.__code__.co_varnames}
    return names
