"""Layouts: the same arrays at other addresses, with other strides.

A caller passes a column of a table, every other row of it, a view of a larger buffer or an expanded
row. Only the values count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from conformance.calls import Call
from conformance.conditions.known_answer import KnownAnswer
from conformance.contracts import Contract
from conformance.strategies.arrays import Array, poisoned
from conformance.targets import RAISED, Target
from conformance.values import is_reference_object, map_children


def column_major(array: Array) -> Array:
    """Return an array whose first axis is the innermost in memory.

    >>> column_major(np.zeros((2, 3), np.int8)).strides
    (1, 4)
    """
    memory = poisoned(tuple(size + 2 for size in reversed(array.shape)), array.dtype)
    return _filled(memory[(slice(1, -1),) * array.ndim].T, array)


def every_other_row(array: Array) -> Array:
    """Return an array as every other row of a larger one.

    >>> every_other_row(np.zeros((2, 3), np.int8)).strides
    (6, 1)
    """
    memory = poisoned((2 * len(array) + 1, *array.shape[1:]), array.dtype)
    return _filled(memory[1::2], array)


def third_column(array: Array) -> Array:
    """Return an array as one column of a larger one: its last axis is not the innermost.

    >>> third_column(np.zeros((2, 3), np.int8)).strides
    (15, 5)
    """
    return _filled(poisoned((*array.shape, 5), array.dtype)[..., 2], array)


def expanded(array: Array) -> Array:
    """Return an array whose equal rows, or entries, are one in memory, or itself if they differ.

    >>> expanded(np.zeros((2, 3), np.int8)).strides, expanded(np.arange(2)).strides
    ((0, 0), (8,))
    """
    memory = array
    for axis in range(array.ndim):
        first = memory.take([0], axis) if memory.shape[axis] else memory
        with np.errstate(invalid="ignore"):  # ml_dtypes warn of NaNs, which equal nothing
            memory = first if (first == memory).all() else memory
    if memory.size == array.size:
        return array
    return np.broadcast_to(_filled(poisoned(memory.shape, array.dtype), memory), array.shape)


def _filled(view: Array, values: Array) -> Array:
    view[...] = values
    return view


LAYOUTS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "with arrays in column-major order": column_major,
    "with every other row of larger arrays": every_other_row,
    "with columns of larger arrays": third_column,
    "with expanded arrays": expanded,
}
"""Layouts of arrays, by what a report calls them."""


def with_layout(call: Call, layout: Callable[[Array], Array]) -> Call:
    """Return a call whose arrays have a layout; arrays that are one stay one."""
    made: dict[int, Any] = {}

    def changed(value: Any) -> Any:
        if id(value) not in made:
            made[id(value)] = laid_out(value)
        return made[id(value)]

    def laid_out(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return layout(value) if value.ndim else value
        is_tree = isinstance(value, list | tuple | dict) or is_reference_object(value)
        return map_children(changed, value) if is_tree else value

    return dataclasses.replace(call, arguments={k: changed(v) for k, v in call.arguments.items()})


def takes_layout(contract: Contract, call: Call, name: str) -> bool:
    """Return whether a call's arrays may have a layout; `reference` refuses some for some."""
    return _known_answer(contract, call, LAYOUTS[name]) is not None


def _known_answer(
    contract: Contract, call: Call, layout: Callable[[Array], Array]
) -> KnownAnswer | None:
    try:
        return KnownAnswer.of(contract, with_layout(call, layout))
    except RAISED:
        return None


def check_layouts(contract: Contract, target: Target, call: Call) -> None:
    """Raise `Mismatch` where the layout of arguments changes an answer.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
    """
    __tracebackhide__ = True
    for name, layout in LAYOUTS.items():
        expected = _known_answer(contract, call, layout)
        if expected is not None:
            invocation = expected.invocation(target)
            expected.check(invocation, name)
            invocation.check_unchanged(contract.changes)
