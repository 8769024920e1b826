"""What is stated about a function of both twins, from which its checks are made.

A `Contract` is a function's one entry in the harness: how valid calls are drawn, the situations
that a run must meet, the ways in which a call can be bad, what the function may change, and what
its result shares memory with. `checks` turns it into tests.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch

from conformance.comparison import Difference, Verdict

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from conformance.situations import Situations
    from conformance.strategies.presets import Preset

Arguments: TypeAlias = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a function, with arguments as `reference` takes them.

    Attributes:
        function: The name, `compute_slot_mapping` or `CommonAttentionMetadata.unpadded`.
        arguments: The arguments by name, `self` included.
        facts: What the strategy knows of them (a `Batch`), for situations, faults and reports.
    """

    function: str
    arguments: Arguments
    facts: Any = None

    def replacing(self, /, **arguments: Any) -> Call:
        """Return the same call with some arguments replaced.

        >>> Call("f", {"a": 1, "b": 2}).replacing(b=3)
        f(a=1, b=3)
        """
        return dataclasses.replace(self, arguments={**self.arguments, **arguments})

    def with_numpy_ints(self) -> Call:
        """Return the same call with NumPy's ints for Python's, which must be taken as well.

        >>> Call("f", {"a": 1, "b": True}).with_numpy_ints()
        f(a=np.int64(1), b=True)
        """
        ints = {name: np.int64(v) for name, v in self.arguments.items() if type(v) is int}
        return self.replacing(**ints)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={brief(value)}" for name, value in self.arguments.items())
        return f"{self.function}({inside})"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print a falsifying example in one line, as Hypothesis asks its printer to."""
        printer.text(repr(self))


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


Breaks: TypeAlias = "Callable[[Call, Draw], Call | None]"
"""Makes a valid call bad; None where the drawn call offers nothing to break."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One precondition, broken in an otherwise valid call.

    Attributes:
        name: What is wrong, as a person would say it: "interleave does not divide the block size".
        error: The class of exception that it gets, exactly.
        argument: The name that the message must mention.
        breaks: Makes a valid call bad.
    """

    name: str
    error: type[Exception]
    argument: str
    breaks: Breaks

    @property
    def situation(self) -> str:
        """The name under which a run counts calls with this fault."""
        return f"refused: {self.name}"


def replaced(argument: str, value: object) -> Breaks:
    """Return a fault that puts one fixed value in an argument's place.

    >>> replaced("block_size", 0)(Call("f", {"block_size": 2}), None)
    f(block_size=0)
    """
    return lambda call, _: call.replacing(**{argument: value})


class Relation(enum.Enum):
    """What a part of a result is to the memory of an argument."""

    SAME = "the same object"
    VIEW = "a view"
    NEW = "new memory"


@dataclasses.dataclass(frozen=True)
class Alias:
    """What the definition says of a part of the result and of an argument.

    Attributes:
        result: The part of the result, as an attribute path; "" is the result itself.
        relation: What it is to the argument.
        argument: The argument, as an attribute path that begins with its name.
        applies: Whether the definition speaks of this call at all.
    """

    result: str
    relation: Relation
    argument: str
    applies: Callable[[Call], bool] = lambda _: True

    def difference(self, result: object, arguments: Arguments) -> Difference | None:
        """Return the difference from what the definition says, None where there is none."""
        part = _follow(result, self.result)
        name, _, rest = self.argument.partition(".")
        argument = _follow(arguments[name], rest)
        if self.relation is Relation.SAME:
            found = "the same object" if part is argument else "another object"
        elif _is_empty(part) or _is_empty(argument):
            return None
        else:
            found = "a view" if _share_memory(part, argument) else "new memory"
        if found == self.relation.value:
            return None
        path = "result" + (f".{self.result}" if self.result else "")
        wanted = f"{self.relation.value} (of {self.argument})"
        return Difference(Verdict.IDENTITY, path, None, found, wanted)


def _follow(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def _is_empty(array: Any) -> bool:
    return not all(array.shape)


def _share_memory(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())
    return bool(np.shares_memory(a, b))


@dataclasses.dataclass(frozen=True)
class Contract:
    """What is stated about one function.

    Attributes:
        function: Its name in both twins; a method is written `Class.method`.
        calls: Valid calls of a preset's sizes.
        situations: Named predicates on a call; a run must meet each.
        pairs: Situations that one call must meet together.
        faults: Each precondition, broken; a run must meet each.
        changes: Names of the arguments that the function changes, which are compared too.
        observe: What to compare of a caller's own objects after the call, by `changes`.
        aliases: What the definition says of the result's memory.
        has_kernel: Whether it has a kernel, so that it is run in the simulator again.
        has_device_path: Whether it goes another way on a device without a kernel of its own, so
            that this way is run on `sim` again.
    """

    function: str
    calls: Callable[[Preset], SearchStrategy[Call]]
    situations: Situations
    pairs: Sequence[tuple[str, str]] = ()
    faults: Sequence[Fault] = ()
    changes: frozenset[str] = frozenset()
    observe: Callable[[Mapping[str, Any]], object] | None = None
    aliases: Sequence[Alias] = ()
    has_kernel: bool = False
    has_device_path: bool = False
