"""A call of a function, with the arguments that `reference` takes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from conformance.values.parts import children, is_reference_object, map_children

Arguments: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a function, with arguments for `reference`; `call[name]` is an argument.

    Attributes:
        function: The name, `compute_slot_mapping` or `CommonAttentionMetadata.unpadded`.
        arguments: The arguments by name, `self` included.
        source: The value from which the strategy made them (a `Batch`, say), for coverage goals,
            invalid inputs and reports.
        hints: Keyword arguments that `reference` does not have, with values that an implementation
            would otherwise read from the device (`logits_indices_cpu`). An implementation without
            the keyword is called without it.
    """

    function: str
    arguments: Arguments
    source: Any = None
    hints: Arguments = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument, or a default if it is not given."""
        return self.arguments.get(name, default)

    def replacing(self, /, **arguments: Any) -> Call:
        """Return the same call with some arguments replaced.

        >>> Call("f", {"a": 1, "b": 2}).replacing(b=3)
        f(a=1, b=3)
        """
        return dataclasses.replace(self, arguments={**self.arguments, **arguments})

    def without(self, name: str) -> Call:
        """Return the same call with an argument left to its default.

        >>> Call("f", {"a": 1, "b": 2}).without("b")
        f(a=1)
        """
        arguments = {key: value for key, value in self.arguments.items() if key != name}
        return dataclasses.replace(self, arguments=arguments)

    def hinting(self, /, **hints: Any) -> Call:
        """Return the same call with some hints replaced.

        >>> Call("f", {"a": 1}).hinting(a_cpu=1)
        f(a=1, hint a_cpu=1)
        """
        return dataclasses.replace(self, hints={**self.hints, **hints})

    def with_numpy_scalars(self) -> Call:
        """Return the same call with its ints and bools as NumPy scalars, in lists and slices too.

        >>> Call("f", {"a": 1, "b": [True]}).with_numpy_scalars()
        f(a=np.int32(1), b=[np.True_])
        """
        arguments, hints = numpy_scalars((self.arguments, self.hints))
        return dataclasses.replace(self, arguments=arguments, hints=hints)

    def with_zeros(self) -> Call:
        """Return the same call with its arrays filled with zeros.

        >>> Call("f", {"a": 1, "b": [np.array([2, 3])]}).with_zeros()
        f(a=1, b=[array([0, 0])])
        """

        def zeros(part: Any) -> Any:
            return np.zeros_like(part) if isinstance(part, np.ndarray) else part

        arguments, hints = _map_leaves(zeros, (self.arguments, self.hints))
        return dataclasses.replace(self, arguments=arguments, hints=hints)

    def __repr__(self) -> str:
        inside = [f"{name}={shorten(value)}" for name, value in self.arguments.items()]
        inside += [f"hint {name}={shorten(value)}" for name, value in self.hints.items()]
        return f"{self.function}({', '.join(inside)})"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print the call in one line, for Hypothesis' falsifying examples."""
        printer.text(repr(self))


def calls_in(example: Any, depth: int = 3) -> Iterator[Call]:
    """Yield the calls in an example, down to some depth of nesting.

    >>> list(calls_in([1, (Call("f", {}),)]))
    [f()]
    """
    if isinstance(example, Call):
        yield example
    elif depth:
        for inner in children(example).values():
            yield from calls_in(inner, depth - 1)


_DATA = (slice, list, tuple, dict)

_LEAVES = (int, np.ndarray)
"""The types of most leaves, checked first: this halves the time for a long list of ints."""


def numpy_scalars(value: Any) -> Any:
    """Return a value with its ints and bools as NumPy scalars, as array arithmetic returns them.

    >>> numpy_scalars(slice(1, 2**40))
    slice(np.int32(1), np.int64(1099511627776), None)
    """
    return _map_leaves(lambda part: _numpy_scalar(part) if isinstance(part, int) else part, value)


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of a value: all but collections and objects of `reference`.

    An object that occurs several times is also one object in the result.
    """
    changed: dict[int, tuple[Any, Any]] = {}  # with the part, so that its id is not reused

    def map_part(part: Any) -> Any:
        is_leaf = isinstance(part, _LEAVES)
        if is_leaf or not (isinstance(part, _DATA) or is_reference_object(part)):
            return change(part)
        if id(part) not in changed:
            changed[id(part)] = part, map_children(map_part, part)
        return changed[id(part)][1]

    return map_part(value)


def _numpy_scalar(value: int) -> np.bool_ | np.int32 | np.int64 | int:
    if isinstance(value, bool):
        return np.bool_(value)
    if abs(value) < 2**31:
        return np.int32(value)
    return np.int64(value) if abs(value) < 2**63 else value


class _NumpyScalars:
    """Whether calls keep drawn NumPy scalars, or get Python numbers instead."""

    are_allowed = True


@contextlib.contextmanager
def only_python_numbers() -> Iterator[None]:
    """Convert drawn NumPy scalars to Python numbers inside, for `reference` and the target."""
    _NumpyScalars.are_allowed = False
    try:
        yield
    finally:
        _NumpyScalars.are_allowed = True


def drawn_scalar(scalar: np.generic) -> Any:
    """Return a drawn NumPy scalar, or its Python number inside `only_python_numbers`.

    >>> with only_python_numbers():
    ...     drawn_scalar(np.int32(7))
    7
    >>> drawn_scalar(np.int32(7))
    np.int32(7)
    """
    return scalar if _NumpyScalars.are_allowed else scalar.item()


def plain(value: Any) -> Any:
    """Return an array as a list, and any other value as it is, for printing."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def shorten(value: Any, maximum: int = 200) -> str:
    """Return a value as text, truncated if it is long: Hypothesis warns of 30,000 characters.

    >>> shorten(np.arange(1000), maximum=10)
    '[0, 1, 2,  ...'
    """
    text = repr(plain(value))
    return text if len(text) <= maximum else text[:maximum] + " ..."
