"""Changes that make a valid call invalid: the value at a path is replaced, changed or removed.

A path is an argument, then attributes and subscripts: `kv_cache_config.kv_cache_groups[-1]`. Lists
and tuples are subscripted by index, dicts by key or index. A change of a call that has no value at
the path returns None.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

from conformance.contracts.contract import Change, InvalidInput
from conformance.strategies.attention_layers import own_config
from conformance.strategies.stub_factories import Own
from conformance.values.call import Call
from conformance.values.parts import children, has_entries, with_child

P = ParamSpec("P")

Refusals: TypeAlias = Mapping[tuple[type[Exception], str], Mapping[str, Any]]
"""Changes of a call, by the exception and the name in its message, and by description."""

NOTHING: Final = object()
"""The sentinel for a path without a value, or for no change."""

REMOVED: Final = object()
"""The sentinel for an attribute that is to be removed."""


def replaced(path: str, value: object) -> Change:
    """Return the change that replaces the value at a path with a fixed one.

    >>> replaced("block_size", 0)(Call("f", {"block_size": 2}))
    f(block_size=0)
    >>> replaced("sizes[-1]", None)(Call("f", {"sizes": [2, 4]}))
    f(sizes=[2, None])
    >>> replaced("sizes[-1]", 0)(Call("f", {"sizes": []}))
    """
    return _at(path, lambda _: value)


def changed(path: str, change: Callable[[Any], Any]) -> Change:
    """Return the change that replaces the value at a path with a changed copy.

    It returns None if the value, or its changed copy, is None.

    >>> changed("x", lambda x: x + 1)(Call("f", {"x": 1}))
    f(x=2)
    """
    return _at(path, lambda value: _or_nothing(None if value is None else change(value)))


def one_fewer(path: str) -> Change:
    """Return the change that leaves out the last entry of a list or an array.

    >>> one_fewer("sizes")(Call("f", {"sizes": [2, 4]}))
    f(sizes=[2])
    """
    return changed(path, lambda entries: entries[:-1] if len(entries) else None)


def removed(path: str) -> Change:
    """Return the change that replaces an object with an engine's own that lacks one attribute.

    >>> import reference
    >>> config = reference.SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)
    >>> bad = removed("config.max_num_seqs")(Call("f", {"config": config}))
    >>> hasattr(bad.arguments["config"], "max_num_seqs")
    False
    """
    return _at(path, lambda _: REMOVED)


def change_maker(
    change: Callable[Concatenate[Call, P], Call | None],
) -> Callable[P, Change]:
    """Turn a function of a call and options into a function of the options that returns a change.

    >>> @change_maker
    ... def longer(call: Call, by: int) -> Call:
    ...     return call.replacing(length=call.arguments["length"] + by)
    >>> longer(by=2)(Call("f", {"length": 1}))
    f(length=3)
    """

    @functools.wraps(change)
    def make(*args: P.args, **kwargs: P.kwargs) -> Change:
        return lambda call: change(call, *args, **kwargs)

    return make


@change_maker
def changed_with_source(call: Call, path: str, change: Callable[[Any, Any], Any]) -> Call | None:
    """Replace a value with a changed copy; the change gets the call's source too.

    >>> changed_with_source("x", lambda x, source: x + source)(Call("f", {"x": 1}, 7))
    f(x=8)
    """
    return changed(path, lambda value: change(value, call.source))(call)


@change_maker
def hinted(call: Call, name: str, change: Callable[[Any], Any]) -> Call | None:
    """Change a hint, if the call has it.

    >>> hinted("a_cpu", lambda a: a + 1)(Call("f", {}, hints={"a_cpu": 1}))
    f(hint a_cpu=2)
    """
    bad = change(call.hints[name]) if name in call.hints else None
    return None if bad is None else call.hinting(**{name: bad})


@change_maker
def chained(call: Call | None, *changes: Change) -> Call | None:
    """Make several changes, one after another.

    >>> chained(replaced("a", 1), replaced("b", 2))(Call("f", {"a": 0, "b": 0}))
    f(a=1, b=2)
    """
    for change in changes:
        call = call and change(call)
    return call


@change_maker
def set_arguments(call: Call, /, **arguments: object) -> Call:
    """Replace several arguments with fixed values.

    >>> set_arguments(a=1, b=2)(Call("f", {"a": 0}))
    f(a=1, b=2)
    """
    return call.replacing(**arguments)


def with_element(array: Any, index: int, value: int) -> Any:
    """Return a copy of an array with another element; None if there is no such element.

    >>> import numpy as np
    >>> with_element(np.array([1, 2]), -1, 3)
    array([1, 3])
    """
    if not -len(array) <= index < len(array):
        return None
    changed_array = array.copy()
    changed_array[index] = value
    return changed_array


def without_key(entries: Mapping[Any, Any], key: object) -> dict[Any, Any]:
    """Return a dict without one of its entries.

    >>> without_key({"a": 1, "b": 2}, "a")
    {'b': 2}
    """
    return {name: entry for name, entry in entries.items() if name != key}


def refusals(table: Refusals, **options: Any) -> list[InvalidInput]:
    """Return the invalid inputs of a table.

    Args:
        table: Changes of a valid call; a value that is not a change replaces the argument that the
            message must name.
        **options: Other fields of each `InvalidInput`.

    >>> [invalid] = refusals({(ValueError, "rank"): {"the rank is too large": 8}}, is_value=True)
    >>> invalid.name, invalid.argument, invalid.change(Call("f", {"rank": 0}))
    ('the rank is too large', 'rank', f(rank=8))
    """
    return [
        InvalidInput(
            name, error, argument, bad if callable(bad) else replaced(argument, bad), **options
        )
        for (error, argument), ways in table.items()
        for name, bad in ways.items()
    ]


def prepared(
    prepare: Callable[[Call], Call | None], invalid_inputs: Iterable[InvalidInput]
) -> list[InvalidInput]:
    """Return invalid inputs of calls that are prepared first.

    Args:
        prepare: Returns a valid call in which the invalid input matters, None if there is none.
        invalid_inputs: The invalid inputs of that call.
    """
    return [replace(invalid, change=chained(prepare, invalid.change)) for invalid in invalid_inputs]


def where(
    is_so: Callable[[Call], object], invalid_inputs: Iterable[InvalidInput]
) -> list[InvalidInput]:
    """Restrict invalid inputs to some calls: in others, the function ignores the invalid value."""
    return prepared(lambda call: call if is_so(call) else None, invalid_inputs)


def _or_nothing(value: object) -> object:
    return NOTHING if value is None else value


@change_maker
def _at(call: Call, path: str, change: Callable[[Any], Any]) -> Call | None:
    name, *steps = ("".join(step) for step in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path))
    bad = _changed(call.arguments.get(name), steps, change)
    return None if bad is NOTHING else call.replacing(**{name: bad})


def _changed(value: Any, steps: list[str], change: Callable[[Any], Any]) -> Any:
    """Return a copy of a value with a change at the end of some steps, or `NOTHING`."""
    if not steps:
        return change(value)
    parts, key = _parts_of(value, steps[0])
    inner = _changed(parts[key], steps[1:], change) if key in parts else NOTHING
    if inner is NOTHING:
        return NOTHING
    if inner is REMOVED:
        return own_config(**without_key(parts, key))
    if isinstance(value, Own):
        return replace(value, attributes={**parts, key: inner})
    return with_child(value, key, inner)


def _parts_of(value: Any, step: str) -> tuple[Mapping[Any, Any], Any]:
    """Return the parts of a value, and the key of the one to which a step leads."""
    if not has_entries(value):
        return value.attributes if isinstance(value, Own) else getattr(value, "__dict__", {}), step
    if isinstance(value, list | tuple):
        return children(value), int(step) % max(1, len(value))
    is_index = step not in value and value and re.fullmatch(r"-?\d+", step)
    return value, list(value)[int(step)] if is_index else step
