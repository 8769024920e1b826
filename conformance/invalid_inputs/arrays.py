"""Kinds of parameters that are arrays."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import Array as NumpyArray
from conformance.contracts.contract import Change
from conformance.invalid_inputs.changes import change_maker, changed, with_element
from conformance.invalid_inputs.kinds import Kind, Violation, derived
from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class Array(Kind):
    """An array.

    Attributes:
        other_dtypes: Dtypes that it must not have.
        ndim: Its number of axes; None for any but 0.
        ndim_error: The exception for another number.
        length: The number of entries that a call needs; None for any.
        is_length_value: Whether that number depends on elements of an array.
        is_exact: Whether it must not have more entries.
        minimum: The least element, among those that a call needs; None for any.
    """

    other_dtypes: Sequence[type[np.generic]] = ()
    ndim: int | None = 1
    ndim_error: type[Exception] = ValueError
    length: Callable[[Call], int] | None = None
    is_length_value: bool = False
    is_exact: bool = False
    minimum: int | None = None

    def violations(self) -> Iterator[Violation]:
        """Yield non-arrays, and arrays of another dtype, number of axes, length or range."""
        yield from super().violations()
        yield derived("is a list", TypeError, np.ndarray.tolist)
        for dtype in self.other_dtypes:
            of_dtype = operator.methodcaller("astype", dtype)
            yield derived(f"is {np.dtype(dtype).name}", TypeError, of_dtype)
        if self.ndim != 1:
            yield derived("has no axis", self.ndim_error, lambda a: np.zeros((), a.dtype))
        if self.ndim is not None:
            yield derived("has one axis too many", self.ndim_error, lambda a: a[None].copy())
            yield derived("has one axis too few", self.ndim_error, _with_one_axis_fewer)
        if self.length is not None:
            change = self._by_length(lambda a, length: a[: length - 1] if length > 0 else None)
            yield Violation("is too short", ValueError, change, self.is_length_value)
        if self.is_exact:
            yield derived("is too long", ValueError, _one_longer)
        if self.minimum is not None:
            bad, what = self.minimum - 1, f"has an element below {self.minimum}"
            change = self._by_length(lambda a, n: with_element(a, n - 1, bad) if n > 0 else None)
            yield Violation(what, ValueError, change, is_value=True)

    def _by_length(self, change: Callable[[NumpyArray, int], Any]) -> Callable[[str], Change]:
        """Return a change of an array that depends on the number of entries that a call needs."""

        @change_maker
        def at(call: Call, path: str) -> Call | None:
            needed = self.length and self.length(call)
            return changed(path, lambda a: change(a, len(a) if needed is None else needed))(call)

        return at


def _with_one_axis_fewer(array: NumpyArray) -> NumpyArray:
    return np.zeros(array.shape[:-1], array.dtype)


@dataclasses.dataclass(frozen=True)
class Starts(Kind):
    """The start of each request's tokens, and the end: int32, from 0, never decreasing."""

    def violations(self) -> Iterator[Violation]:
        """Yield values that are not int32 vectors, and vectors that are not starts."""
        yield from Array([np.int64]).violations()
        yield derived("is empty", ValueError, lambda starts: starts[:0])
        yield derived(
            "does not start at 0", ValueError, lambda a: with_element(a, 0, 1), is_value=True
        )
        yield derived("decreases", ValueError, _with_negative_end, is_value=True)


def _with_negative_end(starts: NumpyArray) -> NumpyArray | None:
    return with_element(starts, -1, -1) if len(starts) > 1 else None


@dataclasses.dataclass(frozen=True)
class Output(Kind):
    """An output array, which every call of the function accepts.

    Attributes:
        like: Returns a valid output array for a call.
        other_dtype: A dtype that it must not have.
        is_contiguous: Whether it must be contiguous.
        is_exact: Whether it must not be longer.
        is_length_value: Whether its length depends on elements of an array.
    """

    like: Callable[[Call], NumpyArray]
    other_dtype: type[np.generic]
    is_contiguous: bool = True
    is_exact: bool = False
    is_length_value: bool = False

    def violations(self) -> Iterator[Violation]:
        """Yield values that are not valid outputs."""
        yield self._made("is a list", TypeError, np.ndarray.tolist)
        name = np.dtype(self.other_dtype).name
        yield self._made(f"is {name}", TypeError, lambda a: np.zeros(a.shape, self.other_dtype))
        yield self._made("has one axis too many", ValueError, lambda a: a[None].copy())
        yield self._made("is one element repeated", ValueError, _one_element)
        if self.is_contiguous:
            yield self._made("lies in pieces", ValueError, _in_pieces)
        is_value = self.is_length_value
        yield self._made("is too short", ValueError, _one_shorter)._replace(is_value=is_value)
        if self.is_exact:
            yield self._made("is too long", ValueError, _one_longer)._replace(is_value=is_value)

    def _made(
        self, what: str, error: type[Exception], change: Callable[[NumpyArray], Any]
    ) -> Violation:
        return Violation(what, error, lambda path: made(path, self.like, change))


def _one_shorter(array: NumpyArray) -> NumpyArray | None:
    return array[1:].copy() if len(array) else None


def _one_longer(array: NumpyArray) -> NumpyArray:
    return np.zeros((len(array) + 1, *array.shape[1:]), array.dtype)


@change_maker
def made(
    call: Call, path: str, like: Callable[[Call], Any], change: Callable[[Any], Any]
) -> Call | None:
    """Replace an argument with a value that is derived from a valid one."""
    bad = change(like(call))
    return None if bad is None else call.replacing(**{path: bad})


def _one_element(array: NumpyArray) -> NumpyArray | None:
    strides = (0,) * array.ndim
    one = np.zeros(1, array.dtype)
    return np.ndarray(array.shape, array.dtype, one, strides=strides) if array.size > 1 else None


def _in_pieces(array: NumpyArray) -> NumpyArray | None:
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.size > 1 else None
