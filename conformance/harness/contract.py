"""Contracts: what is stated about a function; all tests of it are made from its contract."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis.strategies import SearchStrategy

if TYPE_CHECKING:
    from conformance.harness.targets import Target

Arguments: TypeAlias = dict[str, Any]
"""The keyword arguments of a call, as `reference` takes them: NumPy arrays, its own objects."""

Special: TypeAlias = Callable[[Arguments, random.Random], Arguments | None]
"""Makes a valid call invalid in several places at once; None if it does not apply."""

Property: TypeAlias = Callable[["Target", Arguments], None]
"""Makes calls of the target, and raises AssertionError if it does not do what it promises."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """What is stated about one function."""

    function: str  # its name in both twins; a method is `Class.method`, with `self` as an argument
    # Draws sizes and options, and gives a strategy of the arguments of such a call. So two calls of
    # the same sizes can be drawn, with other contents.
    calls: SearchStrategy[SearchStrategy[Arguments]]
    written: frozenset[str] = frozenset({"out"})  # the arguments that it writes
    dense: frozenset[str] = frozenset()  # the arguments that must be contiguous
    # The arguments and fields whose arrays stay NumPy's in both twins.
    host: frozenset[str] = frozenset()
    specials: Sequence[Special] = ()  # invalid calls that no change of one place makes
    # A regular expression of `reference`'s messages. What they refuse, `fast` refuses in checked
    # mode only; so do messages that say what an element is: `x[3] is`.
    checked_only: str = r"(?!)"
    # Arguments and fields of which a change may violate several preconditions: the class of the
    # exception is compared, its message is not.
    loose: frozenset[str] = frozenset()
    # Fields of objects that one of the twins may not read, as it reads their copy.
    unread: frozenset[str] = frozenset()
    # Whether a changed call can be made here: a valid one may have 2**31 results.
    is_affordable: Callable[[Arguments], bool] = lambda _: True
    properties: Sequence[Property] = ()  # what it promises beyond the answer of one call
    laws: Sequence[Any] = ()  # the laws of `conformance.laws.batch_laws` that hold for it
    # How its arguments and results describe a batch: a `Description` of
    # `conformance.laws.batch_laws`.
    description: Any = None
    # A few cases by name that the project's own default run must draw.
    hard_cases: Mapping[str, Callable[[Arguments], bool]] = dataclasses.field(default_factory=dict)
    # Makes the call, if it is not one call of the function: it gets the twin and the arguments by
    # name. See `objects.play`.
    run: Callable[..., Any] | None = None
    # The names that an implementation must have, if not the function itself.
    needs: Sequence[str] = ()
    is_long: bool = False  # whether a call takes milliseconds: conditions and refusals are left out
    has_objects: bool = False  # whether arguments contain factories of `objects`
    examples: float = 1.0  # the part of a profile's examples that suffices
    # Whether a device has a path of its own, tested on the target `native` too.
    has_kernel: bool = False
    # Whether a caller's own objects with the same attributes serve in place of its dataclasses.
    takes_own_objects: bool = False

    @property
    def names(self) -> Sequence[str]:
        return self.needs or (self.function,)
