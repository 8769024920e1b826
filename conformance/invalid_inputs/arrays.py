"""Faults of any argument that is an array or an int."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced


def changed(argument: str, change: Callable[[Any], Any]) -> Change:
    """Return a fault that puts a changed copy of an argument in its place.

    >>> changed("x", lambda x: x + 1)(Call("f", {"x": 1}), None)
    f(x=2)
    """
    return lambda call: call.replacing(**{argument: change(call.arguments[argument])})


def int_faults(argument: str, *, least: int = 1) -> list[InvalidInput]:
    """Return the faults of an int argument that must be at least `least`, and fit an int32."""
    bad: tuple[tuple[str, type[Exception], object], ...] = (
        (f"{least - 1}", ValueError, least - 1),
        ("2**31", ValueError, 2**31),
        ("past int64", ValueError, 2**64),
        ("a bool", TypeError, True),
        ("NumPy's bool", TypeError, np.True_),
        ("a float", TypeError, float(least)),
    )
    return [
        InvalidInput(f"{argument} is {what}", error, argument, replaced(argument, value))
        for what, error, value in bad
    ]


def array_faults(argument: str, dtype: type[np.generic]) -> list[InvalidInput]:
    """Return the faults of an array argument: no array, another dtype, another number of axes."""
    return [
        InvalidInput(
            f"{argument} is a list", TypeError, argument, changed(argument, np.ndarray.tolist)
        ),
        InvalidInput(
            f"{argument} has another dtype",
            TypeError,
            argument,
            changed(argument, lambda a: a.astype(dtype)),
        ),
        InvalidInput(
            f"{argument} has one axis too many",
            ValueError,
            argument,
            changed(argument, lambda a: a[None].copy()),
        ),
    ]


def element(argument: str, value: Callable[[Any, int], int | None]) -> Change:
    """Return a fault that changes one element of a vector argument.

    Args:
        argument: The argument's name.
        value: The new element from the array and an index; None where it is to be left as it is.
            The first index with a new element is changed.
    """

    def breaks(call: Call) -> Call | None:
        array = call.arguments[argument]
        for i in range(len(array)):
            new = value(array, i)
            if new is not None:
                bad = array.copy()
                bad[i] = new
                return call.replacing(**{argument: bad})
        return None

    return breaks


def query_start_loc_faults(argument: str = "query_start_loc") -> list[InvalidInput]:
    """Return the faults of query starts: not from 0, decreasing, none at all."""

    def decreasing(starts: Any, i: int) -> int | None:
        return -1 if i and i == len(starts) - 1 else None

    return [
        *array_faults(argument, np.int64),
        InvalidInput(
            "starts are empty", ValueError, argument, replaced(argument, np.zeros(0, np.int32))
        ),
        InvalidInput(
            "starts do not start at 0",
            ValueError,
            argument,
            element(argument, lambda _, i: 1 if i == 0 else None),
            is_value=True,
        ),
        InvalidInput(
            "starts decrease", ValueError, argument, element(argument, decreasing), is_value=True
        ),
    ]
