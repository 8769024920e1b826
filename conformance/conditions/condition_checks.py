"""The checks of a contract in any memory and under all conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

from hypothesis.strategies import SearchStrategy

from conformance.calls import Call
from conformance.conditions.interleaving import check_interleaved_calls, check_parallel_calls
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.layouts import LAYOUTS, check_layouts, takes_layout
from conformance.conditions.lifetimes import check_lifetimes
from conformance.conditions.process_state import check_modes
from conformance.conditions.read_only import check_read_only
from conformance.conditions.sequences import (
    check_after_refusals,
    check_held_results,
    check_other_batches,
    has_other_batches,
)
from conformance.contracts import Contract
from conformance.profiles import Kind
from conformance.properties import Check
from conformance.strategies import cached as st
from conformance.strategies.presets import Preset
from conformance.targets import Target

OTHER_BATCH: Final = "called after another batch in the same memory"


def in_any_memory(contract: Contract) -> Check:
    """Return the check that neither the layout nor the history of memory changes an answer."""

    def examples(preset: Preset) -> SearchStrategy[_Example]:
        return st.builds(_Example, contract.calls(preset), st.integers(0, 2**16))

    def body(target: Target, example: _Example) -> None:
        __tracebackhide__ = True
        with target.running(checked=example.seed % 4 == 3, seed=example.seed):
            check_other_batches(KnownAnswer.of(contract, example.call), target)
            check_layouts(contract, target, example.call)

    def goals_of(example: _Example) -> Iterator[str]:
        yield from (name for name in LAYOUTS if takes_layout(contract, example.call, name))
        if has_other_batches(KnownAnswer.of(contract, example.call)):
            yield OTHER_BATCH

    return Check(
        contract.function,
        Kind.MEMORY,
        examples,
        body,
        f"{contract.function} answers alike for arrays of any layout, in memory used before.",
        [OTHER_BATCH, *LAYOUTS],
        goals_of,
        contract.has_kernel,
        contract.has_device_path,
    )


def under_conditions(contract: Contract) -> Check:
    """Return the check that a target answers as it does alone: in sequence, in threads, in modes.

    It does not run in the simulator: conditions concern the code that launches kernels.
    """

    def examples(preset: Preset) -> SearchStrategy[_Example]:
        calls = contract.calls(preset)
        return st.builds(_Example, calls, st.integers(0, 2**16), calls)

    def body(target: Target, example: _Example) -> None:
        __tracebackhide__ = True
        with target.running(checked=example.seed % 4 == 3, seed=example.seed):
            expected = KnownAnswer.of(contract, example.call)
            other = KnownAnswer.of(contract, example.other or example.call)
            check_after_refusals(expected, target)
            check_held_results(expected, target)
            check_modes(expected, target)
            check_lifetimes(expected, target)
            check_read_only(expected, target)
            check_interleaved_calls(expected, other, target)
            check_parallel_calls(expected, other, target)

    return Check(
        contract.function,
        Kind.CONDITIONS,
        examples,
        body,
        f"{contract.function} answers as it does alone: in sequence, in threads, in any mode.",
    )


@dataclasses.dataclass(frozen=True)
class _Example:
    """A call, and how it is made.

    Attributes:
        call: The call.
        seed: The order of simulated threads; every fourth is in checked mode.
        other: A call for another thread; None for the same one.
    """

    call: Call
    seed: int
    other: Call | None = None

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        elsewhere = "" if self.other is None else f"; in another thread {self.other!r}"
        printer.text(f"the call above, threads in order {self.seed}{elsewhere}")
