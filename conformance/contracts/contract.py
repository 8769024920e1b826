"""Contracts: what is tested about each function of both twins.

A `Contract` has the strategy of valid calls, the coverage goals, the invalid inputs, the arguments
that the function may change, and the memory that its result may share. `checks` makes tests of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from hypothesis.strategies import SearchStrategy

from conformance.coverage.goals import Goals
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axes
from conformance.laws.interpretation import Interpretation
from conformance.values.aliases import Alias
from conformance.values.call import Call
from conformance.values.comparison import ResultName

Change: TypeAlias = Callable[[Call], Call | None]
"""Makes a valid call invalid; returns None if it does not apply to the call."""

ANY_NAME = r"\w+"
"""The argument of an invalid input whose message may mention anything."""


@dataclasses.dataclass(frozen=True)
class InvalidInput:
    """One violated precondition in an otherwise valid call.

    Attributes:
        name: What is wrong, such as "interleave does not divide the block size".
        error: The exact class of the exception.
        argument: The name that the message must mention.
        change: Makes a valid call invalid.
        is_value: Whether it is in the values of an array, a tensor or a metadata, which are only
            checked in checked mode. Everything else is always refused.
        is_hint: Whether it is in a hint, which `reference` does not have.
        also: What else the message must mention, if the argument alone does not identify the
            problem: the name of the layer, the value.
    """

    name: str
    error: type[Exception]
    argument: str
    change: Change
    is_value: bool = False
    is_hint: bool = False
    also: str = ""

    @property
    def goal(self) -> str:
        """The name of its coverage goal."""
        return f"refused: {self.name}"

    @property
    def naming(self) -> str:
        """What the message must mention."""
        return f"{self.argument} and {self.also}" if self.also else self.argument

    @property
    def expected(self) -> str:
        """What a call with it should do, as reports say it."""
        return f"raise {self.error.__name__} naming {self.naming} ({self.name})"


@dataclasses.dataclass(frozen=True)
class Contract:
    """What is tested about one function.

    Attributes:
        function: Its name in both twins; a method is written `Class.method`.
        calls: Valid calls of a preset's sizes.
        goals: Named predicates on a call; a run must reach each.
        axes: Its size axes; a run must reach each band of each, see `size_axes`.
        pairs: Coverage goals that one call must reach together.
        invalid_inputs: Each violated precondition; a run must reach each.
        changes: Names of the arguments that the function changes, which are compared too.
        observe: What to compare of a caller's own objects after the call, by `changes`.
        observes_refusals: Whether a refused call must leave what `observe` shows as it was.
        refusal_presets: The presets that invalid calls are drawn from; None for the target's.
        on_device: Tensors that must be on the device of the others: an argument or a hint, or a
            field of one, such as `self.seq_lens`.
        aliases: What the definition says of the result's memory.
        compares_views: Whether the result's arrays are compared as views too: strides, where in
            which memory they lie, and which of them are one object. `aliases` is not looked at.
        shows: What is compared of a result that is no tree of data, such as an object with methods.
        returns: What reports call the result; of a tuple, the names of its entries.
        has_kernel: Whether it has a kernel, so that it is run in the simulator again.
        has_device_path: Whether it goes another way on a device without a kernel of its own, so
            that this way is run on `sim` again.
        has_arrays: Whether its arguments hold arrays whose layout and contents a caller may choose.
        takes_objects: Whether it takes objects (a metadata, slices) for which a caller's own with
            the same attributes serve.
        laws: Names of the laws that hold for it; `law_checks` tests them.
        interpretation: How its arguments and results are read as a batch, which is what laws are
            about.
    """

    function: str
    calls: Callable[[Preset], SearchStrategy[Call]]
    goals: Goals
    axes: Axes = dataclasses.field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()
    invalid_inputs: Sequence[InvalidInput] = ()
    changes: frozenset[str] = frozenset()
    observe: Callable[[Mapping[str, Any]], object] | None = None
    observes_refusals: bool = True
    refusal_presets: Sequence[Preset] | None = None
    on_device: Sequence[str] = ()
    aliases: Sequence[Alias] = ()
    compares_views: bool = False
    shows: Callable[[Any], object] | None = None
    returns: ResultName = "result"
    has_kernel: bool = False
    has_device_path: bool = False
    has_arrays: bool = False
    takes_objects: bool = False
    laws: Sequence[str] = ()
    interpretation: Interpretation | None = None

    @property
    def observe_refused(self) -> Callable[[Mapping[str, Any]], object] | None:
        """What to compare of a caller's own objects after a refused call."""
        return self.observe if self.observes_refusals else None
