"""The properties of a night: each check of the conformance harness, on each target."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import get_state_machine_test
from hypothesis.strategies import SearchStrategy

from conformance.checks.contract_checks import checks_in
from conformance.checks.registry import choose_functions, conformance_modules
from conformance.conditions.sequences import HELD_AMONG_OTHERS
from conformance.contracts.check import Check, FixedCheck
from conformance.coverage.presets import Preset
from conformance.execution.gpu_context import noticing_lost_context
from conformance.generation.profiles import PROFILES, Kind
from conformance.stateful.check import StatefulCheck
from conformance.stateful.machine import EngineStateMachine
from conformance.stateful.strategies import SCALES
from conformance.targets.implementations import load_implementations
from conformance.targets.target import Target, choose_targets

MANY_CASES: Final = {
    "conformance.test_block_table_interrupts:test_interrupted_operations_happen_or_not": 300,
}
"""The least number of cases of properties whose cases take branches by chance.

An operation is interrupted before one of its hundreds of instructions, and some branches follow one
of these alone. With the 11 to 28 cases that it had in three minutes, 2 or 3 branches were missed
that the default conformance run takes (2026-11-26).
"""

SIMULATED: Final = 10
"""By how much fewer cases are enough in the simulator, where one takes four times as long."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """The implementations, targets and functions to fuzz, as plain values for workers.

    Attributes:
        impl: Modules or files under test; empty: `fast`.
        adapter: Their adapters; none, one for all, or one for each.
        target: Comma-separated targets; None for the default ones.
        functions: Comma-separated functions; None for all.
    """

    impl: tuple[str, ...] = ()
    adapter: tuple[str, ...] = ()
    target: str | None = None
    functions: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Property:
    """One check on one target.

    Attributes:
        where: Where the check is defined, as the corpus names it.
        check: The check.
        target: The target.
        size: For a state machine, `minimal` or `real`; empty for checks that draw their sizes.
    """

    where: str
    check: Check
    target: Target
    size: str = ""

    @property
    def name(self) -> str:
        """The property's name: the check, the target and the size."""
        short = self.where.removeprefix("conformance.").replace(":", "::")
        return "@".join(filter(None, (short, self.target.name, self.size)))

    @property
    def is_stateful(self) -> bool:
        """Whether it draws while it runs."""
        return isinstance(self.check, StatefulCheck)

    @property
    def calls_other_functions(self) -> bool:
        """Whether it calls all other functions of the target too."""
        return HELD_AMONG_OTHERS in self.check.goals

    @property
    def is_fixed(self) -> bool:
        """Whether its only example is constant."""
        return isinstance(self.check, FixedCheck)

    @property
    def min_cases(self) -> int:
        """How many cases a night should run at least; 0 if it does not matter.

        Refusals: as many as the default conformance run, because each case makes other calls.
        """
        if self.check.kind is Kind.SAME_REFUSAL:
            profile = PROFILES["default"]
            settings = profile.settings(self.check.kind, simulated=self.target.is_simulated)
            return settings.max_examples * len(self.check.sizes(self.target))
        if self.check.first_draws:
            return len(self.check.first_draws)
        return MANY_CASES.get(self.where, 0) // (SIMULATED if self.target.is_simulated else 1)

    def first_choices(self, chance: random.Random) -> list[tuple[int, ...]]:
        """Return the first choices of the cases that a night runs before others, in random order.

        They are the presets of a property with size axes, or the `first_draws` of its check with
        random presets. Other properties have none: their presets are random sizes, and drawing each
        of them first would leave no time to vary inputs.
        """
        if self.is_stateful:
            return []
        presets = range(len(self.presets))
        found: list[tuple[int, ...]]
        if self.check.axes:
            found = [(preset,) for preset in presets]
        else:
            found = [(chance.choice(presets), *draws) for draws in self.check.first_draws]
        chance.shuffle(found)
        return found

    @functools.cached_property
    def presets(self) -> Sequence[Preset]:
        """The presets of its examples; the first choice of a case is the index of one."""
        return () if self.is_stateful else self.check.presets_of_whole_range(self.target)

    @functools.cached_property
    def strategy(self) -> SearchStrategy[Any]:
        """The strategy of its examples, which draws their sizes first."""
        if self.is_stateful:
            return st.data()
        examples = functools.cache(self.check.examples)
        sizes_first = st.sampled_from(self.presets)

        @st.composite
        def sized(draw: st.DrawFn) -> Any:
            return draw(examples(draw(sizes_first)))

        return sized()

    def run(self, example: Any) -> None:
        """Run the check on an example; raise if it fails.

        Raises:
            ContextLostError: The check failed, and the GPU context is lost.
        """
        with noticing_lost_context(self.target.device):
            if self.is_stateful:
                self._machine(example)
            else:
                self.check.body(self.target, example)

    def goals_of(self, example: Any) -> Iterable[str]:
        """Return the goals that an example meets."""
        return () if self.is_stateful else self.check.goals_of(example)

    @functools.cached_property
    def _machine(self) -> Callable[[Any], None]:
        target, scale = self.target, SCALES[self.size]

        def factory() -> EngineStateMachine:
            return EngineStateMachine(target, scale)

        settings = PROFILES["nightly"].stateful_settings(
            simulated=target.is_simulated, large=self.size == "real"
        )
        machine: Any = factory
        test = get_state_machine_test(machine, settings=settings)
        inner: Callable[..., None] = test.hypothesis.inner_test  # type: ignore[attr-defined]
        return lambda data: inner(data=data)


def check_runs_here(subject: Subject) -> None:
    """Check that this machine can run the targets of a subject.

    Raises:
        ValueError: It cannot, or the subject has unknown names.
    """
    choose_targets(subject.target, load_implementations(subject.impl, subject.adapter))


@functools.cache
def properties_of(subject: Subject) -> dict[str, Property]:
    """Return the properties of a subject by name, also those that need a GPU which is elsewhere.

    Args:
        subject: The subject.

    Raises:
        ValueError: The subject has unknown names, or nothing to check.
    """
    implementations = load_implementations(subject.impl, subject.adapter)
    targets = choose_targets(subject.target, implementations, runs_here=False)
    functions = choose_functions(subject.functions)
    found = []
    for where, check in all_checks().items():
        if functions is not None and check.function not in functions:
            continue
        for target in filter(check.runs_on, targets):
            if target.lacks(check.function):
                continue
            of_sizes = check.sizes(target) if isinstance(check, StatefulCheck) else [""]
            found += [Property(where, check, target, size) for size in of_sizes]
    if not found:
        raise ValueError("there is nothing to check: the implementation lacks all that was chosen")
    return {one.name: one for one in found}


@dataclasses.dataclass(frozen=True)
class PropertyJob:
    """A `jobs.Job` for one property of a subject.

    Attributes:
        subject: The subject.
        property_name: The property's name.
    """

    subject: Subject
    property_name: str
    task: ClassVar[str] = "check"

    @property
    def name(self) -> str:
        """The task and the property, such as `minimize PROPERTY`."""
        return f"{self.task} {self.property_name}"

    @property
    def needs_gpu(self) -> bool:
        """Whether the target is a GPU; False if the subject lacks the property."""
        prop = properties_of(self.subject).get(self.property_name)
        return prop is not None and prop.target.device == "cuda"

    @property
    def hang_timeout_seconds(self) -> float | None:
        """A case that takes longer counts as hung; None for the worker's own limit."""
        return None


@functools.cache
def all_checks() -> dict[str, Check]:
    """Return all checks of the harness, by where they are defined."""
    found = {}
    for path in conformance_modules():
        module = importlib.import_module(f"conformance.{path.stem}")
        for name, check in checks_in(vars(module)):
            law = f"[{check.law}]" if check.law else ""
            found[f"{module.__name__}:{name}{law}"] = check
    return found
