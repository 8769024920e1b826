"""What is stated about a function of both twins, from which its checks are made.

A `Contract` is a function's one entry in the harness: how valid calls are drawn, the situations
that a run must meet, the ways in which a call can be bad, what the function may change, and what
its result shares memory with. `checks` turns it into tests.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from conformance.comparison import Difference, Verdict, share_memory
from conformance.supplied import is_supplied

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from conformance.laws.meaning import Meaning
    from conformance.situations import Situations
    from conformance.strategies.presets import Preset

Arguments: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a function, with arguments as `reference` takes them.

    Attributes:
        function: The name, `compute_slot_mapping` or `CommonAttentionMetadata.unpadded`.
        arguments: The arguments by name, `self` included.
        facts: What the strategy knows of them (a `Batch`), for situations, invalid inputs and
            reports.
        hints: Arguments by keyword that `reference` does not take: what an implementation may be
            told besides, and would otherwise ask the device for (`logits_indices_cpu`). One that
            has no such keyword is not told.
    """

    function: str
    arguments: Arguments
    facts: Any = None
    hints: Arguments = dataclasses.field(default_factory=dict)

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
        """Return the same call with NumPy's ints and bools for Python's, in lists and slices too.

        >>> Call("f", {"a": 1, "b": [True]}).with_numpy_scalars()
        f(a=np.int32(1), b=[np.True_])
        """
        hints = numpy_scalars(self.hints)
        return dataclasses.replace(self, arguments=numpy_scalars(self.arguments), hints=hints)

    def __repr__(self) -> str:
        inside = [f"{name}={brief(value)}" for name, value in self.arguments.items()]
        inside += [f"hint {name}={brief(value)}" for name, value in self.hints.items()]
        return f"{self.function}({', '.join(inside)})"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print a falsifying example in one line, as Hypothesis asks its printer to."""
        printer.text(repr(self))


def numpy_scalars(value: Any) -> Any:
    """Return a value with NumPy's ints and bools for Python's, as arithmetic on arrays gives them.

    >>> numpy_scalars(slice(1, 2**40))
    slice(np.int32(1), np.int64(1099511627776), None)
    """
    if isinstance(value, bool | int):
        return _numpy_scalar(value)
    if isinstance(value, slice):
        return slice(*map(numpy_scalars, (value.start, value.stop, value.step)))
    if isinstance(value, list | tuple):
        return type(value)(numpy_scalars(inner) for inner in value)
    if isinstance(value, dict):
        return {key: numpy_scalars(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("reference"):
        cls: Any = type(value)
        return cls(**{name: numpy_scalars(v) for name, v in vars(value).items()})
    return value


def _numpy_scalar(value: int) -> np.bool_ | np.int32 | np.int64 | int:
    if isinstance(value, bool):
        return np.bool_(value)
    if abs(value) < 2**31:
        return np.int32(value)
    return np.int64(value) if abs(value) < 2**63 else value


def plain(value: Any) -> Any:
    """Return a value with its arrays as lists, for printing."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def brief(value: Any, most: int = 200) -> str:
    """Return a value as text, cut where it is long: Hypothesis warns of an example of 30,000 signs.

    >>> brief(np.arange(1000), most=10)
    '[0, 1, 2,  ...'
    """
    text = repr(plain(value))
    return text if len(text) <= most else text[:most] + " ..."


class Draw(Protocol):
    """Hypothesis' `draw`, as a composite strategy has it."""

    def __call__(self, strategy: SearchStrategy[Any], /) -> Any:
        """Return a value drawn from the strategy."""
        ...


Change: TypeAlias = "Callable[[Call], Call | None]"
"""Makes a valid call invalid; None where the drawn call offers nothing to break."""


@dataclasses.dataclass(frozen=True)
class InvalidInput:
    """One precondition, broken in an otherwise valid call.

    Attributes:
        name: What is wrong, as a person would say it: "interleave does not divide the block size".
        error: The class of exception that it gets, exactly.
        argument: The name that the message must mention.
        change: Makes a valid call invalid.
        is_value: Whether it stands in the values of an array or tensor, or in a metadata, which
            are looked at in checked mode only. Everything else is refused always.
        is_hint: Whether it stands in a hint, of which `reference` knows nothing.
        also: What else the message must mention, where a caller could not find what is wrong by
            the argument alone: the layer's name, the offending value.
    """

    name: str
    error: type[Exception]
    argument: str
    change: Change
    is_value: bool = False
    is_hint: bool = False
    also: str = ""

    @property
    def situation(self) -> str:
        """The name under which a run counts calls with this invalid input."""
        return f"refused: {self.name}"

    @property
    def naming(self) -> str:
        """What the message must mention, in words."""
        return f"{self.argument} and {self.also}" if self.also else self.argument


class Relation(enum.Enum):
    """What a part of a result is to an argument, if it is no new memory."""

    SAME = "the same object"
    VIEW = "a view"


@dataclasses.dataclass(frozen=True)
class Alias:
    """What the definition says of a part of the result and of an argument.

    What no alias speaks of is new memory, a new object.

    Attributes:
        result: The part of the result, or of each of its entries if it is a list or a dict, as an
            attribute path; "" is the result itself.
        relation: What it is to the argument.
        argument: The argument, as an attribute path that begins with its name.
        applies: Whether the definition speaks of this call at all.
    """

    result: str
    relation: Relation
    argument: str
    applies: Callable[[Call], bool] = lambda _: True

    def differences(self, result: object, arguments: Arguments) -> Iterator[Difference]:
        """Yield the differences from what the definition says."""
        if isinstance(result, list):
            for i, entry in enumerate(result):
                yield from self._differences(entry, arguments, f"result[{i}]")
        elif isinstance(result, dict):
            for key, entry in result.items():
                yield from self._differences(entry, arguments, f"result[{key!r}]")
        else:
            yield from self._differences(result, arguments, "result")

    def _differences(self, result: object, arguments: Arguments, path: str) -> Iterator[Difference]:
        part = _follow(result, self.result)
        if is_supplied(part):
            return
        name, _, rest = self.argument.partition(".")
        argument = _follow(arguments[name], rest)
        if argument is None:
            return
        if self.relation is Relation.SAME:
            is_so = part is argument
        else:
            is_so = 0 in part.shape or share_memory(part, argument)
        if not is_so:
            path += f".{self.result}" if self.result else ""
            wanted = f"{self.relation.value} (of {self.argument})"
            yield Difference(Verdict.IDENTITY, path, None, "another object", wanted)


def views_of(argument: str, *fields: str) -> tuple[Alias, ...]:
    """Return that fields of a result are views of those of an argument with the same names."""
    return tuple(Alias(field, Relation.VIEW, f"{argument}.{field}") for field in fields)


def _follow(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value


@dataclasses.dataclass(frozen=True)
class Contract:
    """What is stated about one function.

    Attributes:
        function: Its name in both twins; a method is written `Class.method`.
        calls: Valid calls of a preset's sizes.
        situations: Named predicates on a call; a run must meet each.
        pairs: Situations that one call must meet together.
        invalid_inputs: Each precondition, broken; a run must meet each.
        changes: Names of the arguments that the function changes, which are compared too.
        observe: What to compare of a caller's own objects after the call, by `changes`.
        aliases: What the definition says of the result's memory.
        compares_views: Whether the result's arrays are compared as views too: strides, where in
            which memory they lie, and which of them are one object. `aliases` is not looked at.
        shows: What is compared of a result that is no tree of data, such as an object with methods.
        has_kernel: Whether it has a kernel, so that it is run in the simulator again.
        has_device_path: Whether it goes another way on a device without a kernel of its own, so
            that this way is run on `sim` again.
        takes_objects: Whether it takes objects (a metadata, slices) for which a caller's own with
            the same attributes serve.
        laws: Names of the laws in `conformance.laws` that it obeys, for `obeys` to test.
        meaning: How its calls and answers speak of a batch, which is what laws are about; from
            `conformance.meanings`.
    """

    function: str
    calls: Callable[[Preset], SearchStrategy[Call]]
    situations: Situations
    pairs: Sequence[tuple[str, str]] = ()
    invalid_inputs: Sequence[InvalidInput] = ()
    changes: frozenset[str] = frozenset()
    observe: Callable[[Mapping[str, Any]], object] | None = None
    aliases: Sequence[Alias] = ()
    compares_views: bool = False
    shows: Callable[[Any], object] | None = None
    has_kernel: bool = False
    has_device_path: bool = False
    takes_objects: bool = False
    laws: Sequence[str] = ()
    meaning: Meaning | None = None
