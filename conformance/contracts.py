"""What is stated about a function of both twins, from which its checks are made.

A `Contract` is a function's one entry in the harness: how valid calls are drawn, the situations
that a run must meet, the ways in which a call can be bad, what the function may change, and what
its result shares memory with. `checks` turns it into tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hypothesis.strategies import SearchStrategy

from conformance.aliases import Alias
from conformance.calls import Call
from conformance.laws.interpretation import Interpretation
from conformance.situations import Situations
from conformance.strategies.presets import Preset

Change: TypeAlias = Callable[[Call], Call | None]
"""Makes a valid call invalid; None where the drawn call offers nothing to break."""

ANY_NAME = r"\w+"
"""The argument of an invalid input whose message may mention anything."""


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
        laws: Names of the laws that hold for it; `law_checks` tests them.
        interpretation: How its arguments and results are read as a batch, which is what laws are
            about; from `conformance.interpretations`.
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
    interpretation: Interpretation | None = None
