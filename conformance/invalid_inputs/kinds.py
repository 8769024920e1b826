"""Kinds of parameters: the values that a function accepts, and so those it must refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from conformance.contracts.contract import Change, InvalidInput
from conformance.invalid_inputs.changes import change_maker, changed, removed, replaced
from conformance.strategies.attention_layers import own_config
from conformance.values.call import Call

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


class Violation(NamedTuple):
    """One way in which a value is not of its kind.

    Attributes:
        what: What is wrong, in words that follow the parameter's name: "is a bool".
        error: The class of the exception.
        change: Returns the change that makes a call invalid, by the path of the parameter.
        is_value: Whether it is in the elements of an array.
        names: The name that the message must contain instead of the parameter's.
    """

    what: str
    error: type[Exception]
    change: Callable[[str], Change]
    is_value: bool = False
    names: str = ""


def fixed(what: str, error: type[Exception], value: object) -> Violation:
    """Return the violation that is one fixed value."""
    return Violation(what, error, lambda path: replaced(path, value))


def derived(
    what: str, error: type[Exception], change: Callable[[Any], Any], *, is_value: bool = False
) -> Violation:
    """Return the violation that is derived from a valid value."""
    return Violation(what, error, lambda path: changed(path, change), is_value)


def equal(what: str, kind: type, *, otherwise: object) -> Violation:
    """Return the violation that is a value of another type which equals the valid one.

    Both are the same cache key.

    Args:
        what: What is wrong.
        kind: The other type.
        otherwise: The value if none of that type is equal.

    >>> change = equal("is a float", float, otherwise=1.0).change("size")
    >>> change(Call("f", {"size": 3})), change(Call("f", {"size": None})), change(Call("f", {}))
    (f(size=3.0), f(size=1.0), f(size=1.0))
    """

    def change(path: str) -> Change:
        equal_value = derived(what, TypeError, lambda value: _equal(value, kind)).change(path)
        fixed_value = replaced(path, otherwise)
        return lambda call: equal_value(call) or fixed_value(call)

    return Violation(what, TypeError, change)


def _equal(value: object, kind: type) -> object | None:
    """Return a value of a type that equals an int; None if there is none."""
    if type(value) is not int or abs(value) > 2**53:
        return None
    found: object = kind(value)
    return found if found == value else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """The kind of a parameter.

    Attributes:
        is_optional: Whether it takes None.
        is_attribute: Whether it is an attribute that is read, so that it must not be missing.
        names: The name in the message; empty for the last name of the parameter's path.
        also: See `InvalidInput`.
    """

    is_optional: bool = False
    is_attribute: bool = False
    names: str = ""
    also: str = ""

    def violations(self) -> Iterator[Violation]:
        """Yield the ways in which a value is not of this kind."""
        if not self.is_optional:
            yield fixed("is None", TypeError, None)
        if self.is_attribute:
            yield Violation("is missing", AttributeError, removed)


def invalid_by_kind(**parameters: Kind) -> list[InvalidInput]:
    """Return the invalid inputs that follow from the kinds of parameters.

    Args:
        **parameters: The kinds by path: an argument, or a part of one, `config.max_num_seqs`.

    >>> [invalid.name for invalid in invalid_by_kind(has_lora=Bool())]
    ['has_lora is None', 'has_lora is an int', 'has_lora is a str']
    """
    found = []
    for path, kind in parameters.items():
        label = path if kind.names else path.rpartition(".")[2]
        argument = kind.names or label.partition("[")[0]
        for violation in kind.violations():
            invalid = InvalidInput(
                f"{label} {violation.what}",
                violation.error,
                violation.names or argument,
                violation.change(path),
                violation.is_value,
                # Python's own message about a missing attribute contains nothing else.
                also="" if violation.error is AttributeError else kind.also,
            )
            found.append(invalid)
    return found


def invalid_hint(name: str, kind: Kind) -> list[InvalidInput]:
    """Return the invalid inputs that follow from the kind of a hint.

    >>> [invalid.name for invalid in invalid_hint("num_embeds", Bool())]
    ['hint: num_embeds is None', 'hint: num_embeds is an int', 'hint: num_embeds is a str']
    """

    @change_maker
    def of_hint(call: Call, change: Change) -> Call | None:
        bad = change(Call(name, call.hints)) if name in call.hints else None
        return bad and dataclasses.replace(call, hints=bad.arguments)

    return [
        dataclasses.replace(
            invalid, name=f"hint: {invalid.name}", change=of_hint(invalid.change), is_hint=True
        )
        for invalid in invalid_by_kind(**{name: kind})
    ]


@dataclasses.dataclass(frozen=True)
class Int(Kind):
    """An int that is not a bool.

    Attributes:
        minimum: The least value; None for no bound.
        maximum: The greatest value; None for no bound.
        range_error: The exception for a value out of range.
        below: The argument that it must be less than.
        divides: The argument that it must divide.
    """

    minimum: int | None = 1
    maximum: int | None = None
    range_error: type[Exception] = ValueError
    below: str = ""
    divides: str = ""

    def violations(self) -> Iterator[Violation]:
        """Yield ints out of range, and values that are not ints."""
        yield from super().violations()
        if self.minimum is not None:
            yield fixed(f"is {self.minimum - 1}", self.range_error, self.minimum - 1)
            yield fixed("is far too small", self.range_error, -(2**40))
        if self.maximum is not None:
            yield fixed(f"is {_power(self.maximum + 1)}", self.range_error, self.maximum + 1)
            yield fixed("is past int64", self.range_error, 2**64)
        yield equal("is a bool", bool, otherwise=True)
        yield equal("is NumPy's bool", np.bool_, otherwise=np.True_)
        yield equal("is a float", float, otherwise=float(self.minimum or 0))
        yield fixed("is a str", TypeError, str(self.minimum or 0))
        if self.below:
            after = _more_than(self.below, 0)
            yield Violation(f"is not below {self.below}", self.range_error, after)
        if self.divides:
            after = _more_than(self.divides, 1)
            yield Violation(f"does not divide {self.divides}", self.range_error, after)


def _more_than(other: str, step: int) -> Callable[[str], Change]:
    """Return the change, by path, to another argument's value plus a step."""
    return lambda path: lambda call: replaced(path, call.arguments.get(other, 1) + step)(call)


def _power(value: int) -> str:
    """Format a number; a large power of two as `2**n`."""
    exponent = value.bit_length() - 1
    return f"2**{exponent}" if exponent > 16 and value == 2**exponent else str(value)


def size(**options: Any) -> Int:
    """Return the kind of a size: an int from 1 to the largest int32."""
    return Int(1, MAX_INT32, **options)


@dataclasses.dataclass(frozen=True)
class Typed(Kind):
    """A value of a type.

    Attributes:
        others: Values of other types, by description.
    """

    others: Mapping[str, object]

    def violations(self) -> Iterator[Violation]:
        """Yield the values of other types."""
        yield from super().violations()
        for what, value in self.others.items():
            yield fixed(what, TypeError, value)


Bool = partial(Typed, {"is an int": 1, "is a str": "yes"})
Str = partial(Typed, {"is an int": 3, "is bytes": b"auto"})
Class = partial(Typed, {"is a name": "Attention", "is an object": own_config()})
Dtype = partial(
    Typed,
    {
        "is a str": "float16",
        "is a type of Python's": float,
        "is a dtype of objects": np.dtype(object),
        "is a dtype of two fields": np.dtype([("a", np.int8), ("b", np.int8)]),
    },
)


@dataclasses.dataclass(frozen=True)
class List(Kind):
    """A list.

    Attributes:
        entry: The kind of its entries; None if they are not checked.
        takes_tuple: Whether it may be a tuple.
    """

    entry: Kind | None = None
    takes_tuple: bool = False

    def violations(self) -> Iterator[Violation]:
        """Yield values that are not lists, and lists whose last entry is not of its kind."""
        yield from super().violations()
        others = {"is a str": "layers.0", "is a set": {8}, "is a dict": {}, "is an int": 3}
        yield from (fixed(what, TypeError, value) for what, value in others.items())
        if not self.takes_tuple:
            yield derived("is a tuple", TypeError, tuple)
        yield from _of_last_entry(self.entry)


def _of_last_entry(kind: Kind | None) -> Iterator[Violation]:
    """Yield the violations of lists and dicts whose last entry is not of a kind."""

    def at_end(violation: Violation) -> Violation:
        what = f"has an entry that {violation.what}"
        return violation._replace(what=what, change=lambda path: violation.change(f"{path}[-1]"))

    yield from map(at_end, kind.violations() if kind else ())


@dataclasses.dataclass(frozen=True)
class Dict(Kind):
    """A dict.

    Attributes:
        has_str_keys: Whether its keys must be str.
        value: The kind of its values; None if they are not checked.
    """

    has_str_keys: bool = False
    value: Kind | None = None

    def violations(self) -> Iterator[Violation]:
        """Yield values that are not dicts, and dicts with a key or a value of another kind."""
        yield from super().violations()
        yield derived("is a list", TypeError, list)
        if self.has_str_keys:
            yield derived("has a key that is an int", TypeError, _with_int_key)
        yield from _of_last_entry(self.value)


@dataclasses.dataclass(frozen=True)
class Object(Kind):
    """An object of any class with an attribute that is read.

    Attributes:
        reads: The attribute.
    """

    reads: str

    def violations(self) -> Iterator[Violation]:
        """Yield None, which has no such attribute."""
        yield fixed("is None", AttributeError, None)._replace(names=self.reads)


def _with_int_key(entries: dict[Any, Any]) -> dict[Any, Any] | None:
    return {**entries, 3: list(entries.values())[-1]} if entries else None
