"""Which part of a result shares memory with an argument, or is the same object."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

from conformance.array_layout import share_memory
from conformance.calls import Arguments, Call
from conformance.comparison import Difference, Verdict
from conformance.supplied import is_supplied
from conformance.values import child_path, children


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
        if not isinstance(result, list | dict):
            yield from self._differences(result, arguments, "result")
            return
        for key, entry in children(result).items():
            yield from self._differences(entry, arguments, child_path("result", key, is_entry=True))

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
            expected = f"{self.relation.value} (of {self.argument})"
            yield Difference(Verdict.IDENTITY, path, None, "another object", expected)


def views_of(argument: str, *fields: str) -> tuple[Alias, ...]:
    """Return that fields of a result are views of those of an argument with the same names."""
    return tuple(Alias(field, Relation.VIEW, f"{argument}.{field}") for field in fields)


def _follow(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value
