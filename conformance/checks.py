"""Makes tests of contracts: same answer, same refusal, and laws.

A `Check` is defined in a conformance module under a name that begins with `test_`. The pytest
plugin (`conftest.py`) makes tests of it for each target, with small and with large examples;
without pytest, call `check.bind(target, profile, size)()`. `evaluation` evaluates single calls.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import given, seed
from hypothesis.strategies import SearchStrategy

from conformance.calls import Call
from conformance.contracts import Contract, InvalidInput
from conformance.evaluation import check_answers, check_refusal, check_stays_inside, is_named
from conformance.goals import COVERAGE, Goals, pair, reached_goals
from conformance.gpu_context import ContextLostError, noticing_lost_context
from conformance.implementations import is_of_fast
from conformance.invocations import CALL_VARIANTS, CallVariant, Invocation
from conformance.profiles import Kind, Profile
from conformance.report import Mismatch
from conformance.shrinking import note_failure
from conformance.simulated_launches import counting_launches
from conformance.strategies import cached as st
from conformance.strategies.draw import Draw
from conformance.strategies.presets import SIZES, Preset
from conformance.targets import LOOKED_UP, RAISED, REFERENCE, Target, presets_of
from conformance.wording import compare_wording

__all__ = [
    "Check",
    "Checks",
    "check_refusal",
    "check_stays_inside",
    "checks_in",
    "is_named",
    "law",
    "same_answer",
    "same_refusal",
]

FAILURES: list[tuple[Check, Any, BaseException]] = []
"""The failures since the list was cleared; after shrinking, the last example is the smallest."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One statement about a function, checked with many examples.

    Attributes:
        function: The function that the statement is about.
        kind: The kind of check.
        examples: The strategy of examples, by preset.
        body: Raises if an example contradicts the statement on a target.
        goals: The names of its coverage goals.
        goals_of: Returns the goals that an example reaches.
        has_kernel: Whether it must launch a kernel in the simulator.
        has_device_path: Whether it takes another path on a device, without a kernel.
        presets: The presets to draw from; None for the target's.
        law: The name of its law in `conformance.laws`; empty if it is not a law.
        description: The statement in one sentence.
    """

    function: str
    kind: Kind
    examples: Callable[[Preset], SearchStrategy[Any]]
    body: Callable[[Target, Any], None]
    description: str
    goals: Sequence[str] = ()
    goals_of: Callable[[Any], Iterable[str]] = lambda _: ()
    has_kernel: bool = False
    has_device_path: bool = False
    presets: Sequence[Preset] | None = None
    law: str = ""

    def runs_on(self, target: Target) -> bool:
        """Return whether the check can find anything new on a target."""
        return self.has_kernel or self.has_device_path or not target.is_simulated

    def sizes(self, target: Target) -> list[str]:
        """Return the sizes of its examples for a target: `minimal`, `real`, or both."""
        presets = self.presets or presets_of(target)
        return [size for size, is_of in SIZES.items() if any(map(is_of, presets))]

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test of this statement on a target, a function of no arguments.

        Args:
            target: What is under test.
            profile: How many examples the test spends.
            size: `minimal` or `real`, the size of its examples.
            shrink: Whether to shrink a failing example.

        Returns:
            The test, which raises if an example contradicts the statement.
        """
        presets = filter(SIZES[size], self.presets or presets_of(target))
        strategy = st.one_of([self.examples(preset) for preset in presets])

        def run(example: Any) -> None:
            __tracebackhide__ = True
            COVERAGE.count(self.function, target.name, self.goals_of(example))
            with counting_launches(lambda: COVERAGE.launches.update([self.function])):
                try:
                    with noticing_lost_context(target.device):
                        self.body(target, example)
                except ContextLostError as error:
                    FAILURES.append((self, example, error))
                    raise
                except RAISED as error:
                    if target.excuses(self.function, error):
                        return
                    FAILURES.append((self, example, error))
                    note_failure(self.function, LOOKED_UP)
                    raise

        name = f"{self.function}_{self.kind.name}_{self.body.__name__}_{size}".replace(".", "_")
        run.__name__ = run.__qualname__ = name
        run.__doc__ = self.description
        options = profile.settings(self.kind, simulated=target.is_simulated, shrink=shrink)
        test: Callable[[], None] = options(given(example=strategy)(run))
        if profile.seed is None:
            return test
        # Hypothesis would seed all tests alike, by the seed of the run or the source of `run`, so
        # that all would draw the same.
        return seed(zlib.crc32(f"{profile.seed} {name}".encode()))(test)


@dataclasses.dataclass(frozen=True)
class Checks:
    """Several checks of one function under one name; the plugin makes a test of each.

    Attributes:
        function: The function.
        checks: The checks.
    """

    function: str
    checks: tuple[Check, ...]

    def runs_on(self, target: Target) -> bool:
        """Return whether one of them can find anything new on a target."""
        return any(check.runs_on(target) for check in self.checks)

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test that runs all of them; see `Check.bind`."""
        tests = [
            check.bind(target, profile, size, shrink=shrink)
            for check in self.checks
            if check.runs_on(target) and size in check.sizes(target)
        ]

        def run() -> None:
            for test in tests:
                test()

        return run


def checks_in(values: Mapping[str, object]) -> Iterator[tuple[str, Check]]:
    """Yield the checks among a module's values, with their names.

    Args:
        values: The values by name, as `vars(module)` gives them.
    """
    for name, value in values.items():
        if not name.startswith("test_"):
            continue
        for check in value.checks if isinstance(value, Checks) else (value,):
            if isinstance(check, Check):
                yield name, check


def same_answer(contract: Contract) -> Check:
    """Return the check that a target returns what `reference` does for valid calls."""
    named = [*contract.goals, *(pair(a, b) for a, b in contract.pairs)]
    # An idle step would permanently change the caller's own objects.
    free = {
        "has_numpy_scalars": True,
        "is_positional": True,
        "has_own_objects": contract.takes_objects,
        "follows_idle_step": contract.observe is None,
    }
    choices = {name: st.booleans() if is_free else st.just(False) for name, is_free in free.items()}
    variants = st.builds(CallVariant, **choices)

    def examples(preset: Preset) -> SearchStrategy[ValidExample]:
        return st.builds(_valid, contract.calls(preset), st.integers(0, 2**16), variants)

    def body(target: Target, example: ValidExample) -> None:
        __tracebackhide__ = True
        check_answers(contract, target, example.call, example.variant, seed=example.seed)

    def goals_of(example: ValidExample) -> list[str]:
        reached = reached_goals(example.call, contract.goals, contract.pairs)
        return reached + example.variant.goals

    return Check(
        contract.function,
        Kind.SAME_ANSWER,
        examples,
        body,
        f"{contract.function} answers valid calls as reference does.",
        [*named, *(CALL_VARIANTS[field] for field, is_free in free.items() if is_free)],
        goals_of,
        contract.has_kernel,
        contract.has_device_path,
    )


def _valid(call: Call, seed: int, variant: CallVariant) -> ValidExample:
    """Return a valid call and how to make it; with every fourth seed, with negated tensors."""
    return ValidExample(call, seed, dataclasses.replace(variant, has_negated_tensors=seed % 4 == 3))


@dataclasses.dataclass(frozen=True)
class ValidExample:
    """A valid call, and how to make it.

    Attributes:
        call: The call.
        seed: The order of threads.
        variant: The choices of the caller.
    """

    call: Call
    seed: int
    variant: CallVariant

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        variant = ", ".join(self.variant.goals) or "called plainly"
        printer.text(f"the call above, {variant}, threads in order {self.seed}")


def same_refusal(contract: Contract) -> Check:
    """Return the check that a target refuses invalid calls as `reference` does.

    Every example makes one valid call invalid in every way that the contract names. The exception
    must have the same class and name the argument, and nothing may have changed. Messages are
    compared too (see `conformance.wording`): those of `fast` have the text of `reference`, those of
    others name the same element and value. A difference in wording is reported last, so that a
    declared one does not hide other differences.
    """

    @st.composite
    def examples(draw: Draw, preset: Preset) -> InvalidExample:
        call = draw(contract.calls(preset))
        invalid_calls = [(invalid, invalid.change(call)) for invalid in contract.invalid_inputs]
        return InvalidExample(
            call, [(invalid, bad) for invalid, bad in invalid_calls if bad is not None]
        )

    def body(target: Target, example: InvalidExample) -> None:
        __tracebackhide__ = True
        wording = None
        right = {one: Invocation(one, example.call) for one in (REFERENCE, target)}
        for invalid, call in example.ways:
            if not _is_given(right[target], invalid, call):
                continue
            with right[REFERENCE].with_call(call) as ours, right[target].with_call(call) as theirs:
                # A refused call changes nothing, so the invocation can be called again.
                if invalid.is_hint:
                    check_refusal(theirs, invalid, contract.observe)
                else:
                    expected = check_refusal(ours, invalid, contract.observe)
                    actual = check_refusal(theirs, invalid, contract.observe)
                    is_exact = is_of_fast(target.lookup(contract.function))
                    found = compare_wording(expected, actual, is_exact=is_exact)
                    if found is not None and wording is None:
                        wording = Mismatch(call, target.name, found)
                if invalid.is_value:
                    check_stays_inside(theirs, invalid, contract.changes)
                else:
                    check_refusal(theirs, invalid, contract.observe, checked=False)
            if invalid.is_value:  # the arguments may have been written to
                right[target] = Invocation(target, example.call)
        if wording is not None:
            raise wording

    return Check(
        contract.function,
        Kind.SAME_REFUSAL,
        examples,
        body,
        f"{contract.function} refuses invalid calls as reference does, and changes nothing; "
        "with checks off they stay inside their memory.",
        [invalid.goal for invalid in contract.invalid_inputs],
        lambda example: [invalid.goal for invalid, _ in example.ways],
        contract.has_kernel,
        contract.has_device_path,
    )


def _is_given(invocation: Invocation, invalid: InvalidInput, call: Call) -> bool:
    """Return whether a target gets the invalid input: whether it has the field or the hint."""
    if invalid.argument in invocation.target.missing_fields:
        return False
    valid = invocation.call.hints
    changed = [name for name in call.hints if call.hints[name] is not valid.get(name)]
    return not invalid.is_hint or all(map(invocation.takes, changed))


@dataclasses.dataclass(frozen=True)
class InvalidExample:
    """A valid call, and the invalid calls made from it."""

    call: Call
    ways: list[tuple[InvalidInput, Call]]

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the bad call, which the report prints better than Hypothesis does."""
        printer.text(
            f"the call above, one of {len(self.ways)} invalid ones made from {self.call!r}"
        )


def law(
    function: str,
    examples: Callable[[Preset], SearchStrategy[Any]],
    *,
    goals: Goals | None = None,
    has_kernel: bool = False,
    presets: Sequence[Preset] | None = None,
) -> Callable[[Callable[[Target, Any], None]], Check]:
    """Make a check of a property that does not depend on `reference`.

    Args:
        function: The function that the statement is about.
        examples: The strategy of examples, by preset.
        goals: The coverage goals, as predicates on an example.
        has_kernel: Whether the function has a kernel.
        presets: The presets to draw from; None for the target's.

    Returns:
        A decorator of the property: a function of a target and an example that raises if the
        example contradicts it. Its docstring is the statement.
    """
    named = goals or {}

    def decorate(body: Callable[[Target, Any], None]) -> Check:
        return Check(
            function,
            Kind.LAW,
            examples,
            body,
            (body.__doc__ or "").strip(),
            list(named),
            lambda example: reached_goals(example, named),
            has_kernel,
            presets=presets,
        )

    return decorate
