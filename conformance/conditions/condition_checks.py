"""The checks of a contract under conditions, one for each condition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from hypothesis.strategies import SearchStrategy

from conformance.conditions import interleaving, lifetimes, sequences
from conformance.conditions.interference import NUM_CANDIDATES, most_different
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.layouts import LAYOUTS, layout_scenarios
from conformance.conditions.modes import MODES, UNCHANGED, mode_scenarios
from conformance.conditions.names import goals_of_names, name_scenarios
from conformance.conditions.read_only import READ_ONLY, read_only_scenarios
from conformance.conditions.scenarios import Scenario, Scenarios
from conformance.contracts.check import Check
from conformance.contracts.contract import Contract
from conformance.coverage.presets import Preset
from conformance.generation.profiles import Kind
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, Target
from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition that a function's answers must not depend on.

    Attributes:
        name: The suffix of its test names.
        kind: The kind of its checks.
        scenarios: Yields the scenarios of a call.
        goals: Returns the scenarios that a contract must reach; none if it does not apply.
        statement: The requirement, which follows the name of a function.
        num_others: How many other calls of the function are drawn; one of them is made.
    """

    name: str
    kind: Kind
    scenarios: Scenarios
    goals: Callable[[Contract], Sequence[str]]
    statement: str
    num_others: int = 0


def _of_arrays(*goals: str) -> Callable[[Contract], Sequence[str]]:
    return lambda contract: goals if contract.has_arrays else ()


def _of_all(*goals: str) -> Callable[[Contract], Sequence[str]]:
    return lambda _: goals


def _of_results(contract: Contract) -> list[str]:
    """Return the goals of held results; none if calls write to the memory of results."""
    if contract.observe is not None or "self" in contract.changes:
        return []
    goals = [sequences.HELD]
    return [*goals, sequences.HELD_AMONG_OTHERS] if contract.has_arrays else goals


def _of_refusals(contract: Contract) -> list[str]:
    if not contract.observes_refusals:
        return []
    kinds = {bad.is_value for bad in contract.invalid_inputs if not bad.is_hint}
    names = {False: sequences.REFUSED, True: sequences.REFUSED_VALUES}
    goals = [names[kind] for kind in sorted(kinds)]
    is_of_number = partial(sequences.is_of_number, contract.function)
    return goals + [sequences.REFUSED_EQUAL] * any(map(is_of_number, contract.invalid_inputs))


CONDITIONS: Final = (
    Condition(
        "in_any_layout",
        Kind.MEMORY,
        layout_scenarios,
        _of_arrays(*LAYOUTS),
        "returns the same result for arrays of any memory layout",
    ),
    Condition(
        "after_other_batches",
        Kind.MEMORY,
        sequences.other_batch_scenarios,
        _of_arrays(sequences.OTHER_BATCH),
        "returns the same result in memory that held another batch before",
        num_others=1,
    ),
    Condition(
        "after_refusals",
        Kind.CONDITIONS,
        sequences.refusal_scenarios,
        _of_refusals,
        "returns the same result after refused calls",
    ),
    Condition(
        "with_held_results",
        Kind.CONDITIONS,
        sequences.held_scenarios,
        _of_results,
        "does not change the results of its earlier calls",
        num_others=1,
    ),
    Condition(
        "in_any_mode",
        Kind.CONDITIONS,
        mode_scenarios,
        _of_all(*MODES, UNCHANGED),
        "returns the same result in any mode of torch, and does not change the process state",
    ),
    Condition(
        "keeps_nothing",
        Kind.CONDITIONS,
        lifetimes.lifetime_scenarios,
        _of_all(lifetimes.FREED, lifetimes.NO_THREADS),
        "does not keep its arguments, its results, or threads alive",
    ),
    Condition(
        "with_read_only_arguments",
        Kind.CONDITIONS,
        read_only_scenarios,
        _of_all(READ_ONLY),
        "never writes to an argument that it must not change, not even temporarily",
    ),
    Condition(
        "with_alike_names",
        Kind.CONDITIONS,
        name_scenarios,
        goals_of_names,
        "distinguishes similar names, and different classes of the same name",
    ),
    Condition(
        "in_threads",
        Kind.THREADS,
        interleaving.thread_scenarios,
        _of_all(*interleaving.names_in_both_modes(interleaving.IN_THREADS)),
        "returns the same result if another thread makes a call between any two of its lines",
        num_others=NUM_CANDIDATES,
    ),
    Condition(
        "in_parallel",
        Kind.THREADS,
        interleaving.parallel_scenarios,
        _of_all(*interleaving.names_in_both_modes(interleaving.IN_PARALLEL)),
        "returns the same result in two threads at the same time",
        num_others=NUM_CANDIDATES,
    ),
)
"""The conditions. Only those of memory run in the simulator: the others concern the code that
launches kernels."""


def condition_checks(contract: Contract) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a contract, each with the suffix of its test names."""
    for condition in CONDITIONS:
        if condition.goals(contract):
            yield f"_{condition.name}", _check_of(condition, contract)


def _check_of(condition: Condition, contract: Contract) -> Check:
    def examples(preset: Preset) -> SearchStrategy[_Example]:
        calls, seeds = contract.calls(preset), st.integers(0, 2**16)
        others = st.tuples(*[calls] * condition.num_others)
        return st.builds(_Example, calls, seeds, others)

    @lru_cache(maxsize=1)
    def scenarios_of(example: _Example) -> list[Scenario]:
        expected = other = KnownAnswer.of(contract, example.call)
        if example.others:
            other = KnownAnswer.of(contract, most_different(expected, example.others))
        alone = Scenario("called alone", expected.check_alone)
        return [*condition.scenarios(expected, other)] or [alone]

    def body(target: Target, example: _Example) -> None:
        __tracebackhide__ = True
        with target.running(checked=example.seed % 4 == 3, seed=example.seed):
            for scenario in scenarios_of(example):
                try:
                    scenario.check(target)
                except RAISED as error:
                    # A declared deviation does not keep later scenarios from being checked.
                    if not target.excuses(contract.function, error):
                        raise

    body.__name__ = condition.name
    is_of_memory = condition.kind is Kind.MEMORY
    return Check(
        contract.function,
        condition.kind,
        examples,
        body,
        f"{contract.function} {condition.statement}.",
        condition.goals(contract),
        lambda example: [scenario.name for scenario in scenarios_of(example)],
        contract.has_kernel and is_of_memory,
        contract.has_device_path and is_of_memory,
        tests_invalid_inputs=condition.scenarios is sequences.refusal_scenarios,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Example:
    """A call, and how it is made.

    Attributes:
        call: The call.
        seed: The order of simulated threads; every fourth is in checked mode.
        others: Calls of the same function; one of them is made in addition.
    """

    call: Call
    seed: int
    others: tuple[Call, ...] = ()

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        others = f"; the other call is one of {self.others!r}" if self.others else ""
        printer.text(f"the call above, thread-order seed {self.seed}{others}")
