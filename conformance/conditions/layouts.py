"""Layouts: the same arrays at other addresses, with other strides.

A caller may pass a column of a table, every other row of it, a view of a larger buffer or an
expanded row. Only the values may affect the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np

from conformance.arrays.guard_bands import Array, offset_of, poisoned
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.contracts.contract import Contract
from conformance.targets.target import RAISED, Target
from conformance.values.call import Call
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS
from conformance.values.parts import arrays_in, children, is_reference_object, with_children


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
    """Return an array with stride 0 along axes of equal elements, or itself if there are none.

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


def from_the_end(array: Array) -> Array:
    """Return an array with a negative stride along its first axis, which torch does not support.

    >>> from_the_end(np.zeros((2, 3), np.int8)).strides
    (-3, 1)
    """
    return _filled(poisoned(array.shape, array.dtype)[::-1], array)


LAYOUTS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "with arrays in column-major order": column_major,
    "with every other row of larger arrays": every_other_row,
    "with columns of larger arrays": third_column,
    "with expanded arrays": expanded,
}
"""Layouts of arrays, by their names in reports."""


def with_layout(call: Call, layout: Callable[[Array], Array], fixed: frozenset[str]) -> Call | None:
    """Return a call whose arrays have a layout, or None if none of them changes.

    Arguments that are the same array stay the same. For fields that are NumPy arrays in all
    implementations, `from_the_end` replaces `every_other_row`.

    Args:
        call: A valid call.
        layout: The layout.
        fixed: The arguments that stay as they are.
    """
    made: dict[int, Any] = {}

    def changed(value: Any, name: str) -> Any:
        if id(value) not in made:
            made[id(value)] = laid_out(value, name)
        return made[id(value)]

    def laid_out(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            is_reversed = name in NUMPY_IN_BOTH_TWINS and layout is every_other_row
            chosen = from_the_end if is_reversed else layout
            return chosen(value) if value.ndim else value
        if not (isinstance(value, list | tuple | dict) or is_reference_object(value)):
            return value
        parts = {key: changed(part, str(key)) for key, part in children(value).items()}
        return with_children(value, parts) if parts else value

    arguments = {k: v if k in fixed else changed(v, k) for k, v in call.arguments.items()}
    arrays = (dict(arrays_in(values, "")) for values in (call.arguments, arguments))
    pairs = zip(*(found.values() for found in arrays), strict=True)
    if all(_place(before) == _place(after) for before, after in pairs):
        return None
    return dataclasses.replace(call, arguments=arguments)


def _place(array: Array) -> tuple[int, tuple[int, ...]]:
    return offset_of(array), array.strides


def layout_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield each layout that the arrays of a call can have.

    An argument that the function writes keeps its layout if `reference` refuses the new one, and
    is never expanded.
    """
    contract = expected.contract
    for name, layout in LAYOUTS.items():
        attempts = [(layout, frozenset[str]()), (layout, contract.changes)]
        if layout is expanded:
            attempts = [(one, contract.changes) for one in (layout, *_repeating(expected.call))]
        for one, fixed in attempts:
            known = _known_answer(contract, with_layout(expected.call, one, fixed))
            if known is not None:
                yield Scenario(name, partial(check_layout, known, name))
                break


def _repeating(call: Call) -> Iterator[Callable[[Array], Array]]:
    """Yield for each array a layout that expands its first row and keeps all other arrays."""
    rows = {
        (array.shape, array.dtype, array.tobytes())
        for _, array in arrays_in(call.arguments, "")
        if array.ndim and len(array) > 1
    }
    for key in sorted(rows, key=str):

        def layout(array: Array, key: Any = key) -> Array:
            is_meant = (array.shape, array.dtype, array.tobytes()) == key
            return np.broadcast_to(array[:1].copy(), array.shape) if is_meant else array

        yield layout


def _known_answer(contract: Contract, call: Call | None) -> KnownAnswer | None:
    """Return a call with its answer; None if `reference` refuses it."""
    try:
        return None if call is None else KnownAnswer.of(contract, call)
    except RAISED:
        return None


def check_layout(expected: KnownAnswer, name: str, target: Target) -> None:
    """Raise `Mismatch` if the answer of a call whose arrays have a layout is wrong.

    Args:
        expected: A valid call, with its answer.
        name: The layout.
        target: The target under test.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    expected.check(invocation, name)
    invocation.check_unchanged(expected.contract.changes)
