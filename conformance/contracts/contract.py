"""Contracts: the tested behaviour of each function of both twins.

A `Contract` has a strategy of valid calls, coverage goals, invalid inputs, the arguments that the
function may change, and the memory that its result may share. `conformance.checks` tests it.
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
"""The `argument` of an invalid input whose message may mention any name."""


@dataclasses.dataclass(frozen=True)
class InvalidInput:
    """One violated precondition in an otherwise valid call.

    Attributes:
        name: What is wrong, such as "interleave does not divide the block size".
        error: The exact class of the exception.
        argument: The name that the message must mention, as a regular expression.
        change: Makes a valid call invalid.
        is_value: Whether it is a value in an array, a tensor or a metadata object. These are only
            checked in checked mode; everything else is always refused.
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
        """The expected outcome of a call with it, in the words of reports."""
        return f"raise {self.error.__name__} naming {self.naming} ({self.name})"


@dataclasses.dataclass(frozen=True)
class Contract:
    """The tested behaviour of one function.

    Attributes:
        function: Its name in both twins; a method is written `Class.method`.
        calls: The strategy of valid calls, by preset.
        goals: Named predicates on a call; a run must reach each.
        axes: Its size axes; a run must reach each band of each, see `size_axes`.
        pairs: Coverage goals that one call must reach together.
        invalid_inputs: The ways to violate a precondition; a run must reach each.
        changes: Names of the arguments that the function changes. Their values are compared too.
        observe: Returns the state of the caller's own objects, which is compared after the call
            instead of the values of `changes`.
        observes_refusals: Whether a refused call must not change what `observe` returns.
        refusal_presets: The presets that invalid calls are drawn from; None for the target's.
        on_device: Tensors that must be on the device of the others: an argument or a hint, or a
            field of one, such as `self.seq_lens`.
        aliases: The parts of the result that are an argument, or a view of one.
        compares_views: Whether the result's arrays are compared as views too: strides, memory,
            offset, and object identity. `aliases` is ignored then.
        shows: Converts a result such as an object with methods to data that can be compared.
        returns: The name of the result in reports; for a tuple, the names of its entries.
        has_kernel: Whether it has a kernel, and is therefore run in the simulator too.
        has_device_path: Whether it takes another path on a device, without a kernel, and is
            therefore run on `sim` too.
        has_arrays: Whether its arguments contain arrays whose layout and contents are free.
        has_fixed_arrays: Whether its arguments contain arrays, and the layout or contents of these
            are fixed.
        takes_objects: Whether it accepts a caller's own objects with the same attributes in place
            of its classes (metadata, slices).
        laws: Names of the laws that hold for it; `law_checks` tests them.
        interpretation: How its arguments and results describe a batch, for the laws.
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
    has_fixed_arrays: bool = False
    takes_objects: bool = False
    laws: Sequence[str] = ()
    interpretation: Interpretation | None = None

    @property
    def observe_refused(self) -> Callable[[Mapping[str, Any]], object] | None:
        """`observe` for refused calls; None if their effects are not compared."""
        return self.observe if self.observes_refusals else None
