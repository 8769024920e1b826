"""Properties of functions, checked with many examples on each target.

A `Check` is defined in a conformance module under a name that begins with `test_`, mostly by
`property_check`; `conformance.checks` makes those of a contract. The pytest plugin (`conftest.py`)
makes a test of it for each target and size. Without pytest, call
`check.bind(target, profile, size)()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

from conformance.adapters import Unsupported
from conformance.coverage.goals import COVERAGE, Goals, reached_goals
from conformance.coverage.presets import MINIMAL, SIZES, Preset
from conformance.coverage.size_axes import Axes, presets_of_bands
from conformance.execution.crashes import RERUN
from conformance.execution.gpu_context import ContextLostError, noticing_lost_context
from conformance.execution.invocations import Invocation
from conformance.execution.process_state import ALL_SETTINGS, unchanged_settings
from conformance.generation.database import Examples
from conformance.generation.examples import run_examples
from conformance.generation.profiles import Kind, Profile
from conformance.generation.shrinking import note_failure
from conformance.strategies import cached as st
from conformance.strategies import whole_range
from conformance.targets.simulated_launches import counting_launches
from conformance.targets.target import LOOKED_UP, RAISED, Target
from conformance.values.call import Call, only_python_numbers
from conformance.values.differences import Finding, finding_of

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
        tests_invalid_inputs: Whether its calls are invalid, or may be. Implementations that do not
            validate are not tested.
        axes: The size axes along which its examples are large, one at a time.
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
    tests_invalid_inputs: bool = False
    axes: Axes = dataclasses.field(default_factory=dict)
    law: str = ""

    def runs_on(self, target: Target) -> bool:
        """Return whether the check can find anything new on a target."""
        if self.tests_invalid_inputs and not target.validates:
            return False
        # Torch itself crashes when others read a tensor whose storage is empty.
        if self.kind is Kind.OTHER_TENSORS and not target.launches(self.function):
            return False
        return self.has_kernel or self.has_device_path or not target.is_simulated

    def sizes(self, target: Target) -> list[str]:
        """Return the sizes of its examples for a target: `minimal`, `real`, or both."""
        presets = self.presets or target.presets
        return [size for size, is_of in SIZES.items() if any(map(is_of, presets))]

    def presets_of_whole_range(self, target: Target) -> Sequence[Preset]:
        """Return presets of all sizes, smallest first; a random run draws from some of them."""
        if self.axes:
            return [*presets_of_bands(self.axes)]
        if self.presets is None:
            return whole_range.IN_SIMULATOR if target.is_simulated else whole_range.ON_HOST
        if all(SIZES["minimal"](preset) for preset in self.presets):
            return (MINIMAL,)  # it does not support others
        return whole_range.OF_PAIRS

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test of this statement on a target, a function of no arguments.

        Args:
            target: The target under test.
            profile: The profile, with the number of examples.
            size: `minimal` or `real`, the size of its examples.
            shrink: Whether to shrink a failing example.

        Returns:
            The test, which raises if an example contradicts the statement.
        """
        choices = self.presets or target.presets
        if profile.is_random:
            choices = self.presets_of_whole_range(target)
        presets = [*filter(SIZES[size], choices)]
        if not self.axes:
            return self._bind(target, profile, presets, size, shrink=shrink)
        # Each preset gets its own examples: one strategy of all might leave some out.
        tests = [
            self._bind(target, profile, [preset], preset.name, shrink=shrink) for preset in presets
        ]

        def run() -> None:
            __tracebackhide__ = True
            failures = []
            for test in tests:
                try:
                    test()
                except RAISED as error:
                    if target.implementation.is_strict or finding_of(error) is Finding.WRONG_ANSWER:
                        raise
                    failures.append(error)
            if failures:
                raise failures[-1]

        return run

    def _bind(
        self,
        target: Target,
        profile: Profile,
        presets: Sequence[Preset],
        size: str,
        *,
        shrink: bool,
    ) -> Callable[[], None]:
        """Return a test with examples of some presets."""
        if profile.is_random:
            strategy = st.sampled_from(presets).flatmap(functools.cache(self.examples))
        else:
            strategy = st.one_of([self.examples(preset) for preset in presets])

        tolerated: set[Finding] = set()

        def run(example: Any) -> None:
            __tracebackhide__ = True
            COVERAGE.count(self.function, target.name, self.goals_of(example))
            try:
                self.examine(target, example)
            except Unsupported as reason:
                COVERAGE.note_unsupported(self.function, target.name, str(reason))
            except ContextLostError as error:
                FAILURES.append((self, example, error))
                raise
            except RAISED as error:
                if target.excuses(self.function, error) or finding_of(error) in tolerated:
                    return
                FAILURES.append((self, example, error))
                note_failure(self.function, LOOKED_UP)
                raise

        name = f"{self.function}_{self.kind.name}_{self.body.__name__}_{size}"
        run.__name__ = run.__qualname__ = re.sub(r"\W", "_", name)
        run.__doc__ = self.description
        options = profile.settings(self.kind, simulated=target.is_simulated, shrink=shrink)
        # With a seed `run_examples` draws the examples, and Hypothesis draws them again if one
        # fails, to shrink it; without one, in a random run, Hypothesis draws all.
        key = database_key(target, run.__name__)
        test = self._test_of(run, strategy, options, seed_of(profile, run.__name__), key)

        @functools.wraps(test)
        def test_in_unchanged_process() -> None:
            __tracebackhide__ = True
            # Hypothesis would run a failing example again, but some changes are made only once.
            with unchanged_settings(ALL_SETTINGS, Call(self.function, {}), target.name):
                if target.implementation.is_strict:
                    test()
                else:
                    _run_for_most_severe(test, tolerated, profile.database)

        return test_in_unchanged_process

    @staticmethod
    def _test_of(
        run: Callable[[Any], None],
        strategy: SearchStrategy[Any],
        options: hypothesis.settings,
        seed: int | None,
        key: bytes,
    ) -> Callable[[], None]:
        if seed is None:
            return options(hypothesis.given(example=strategy)(run))

        def test() -> None:
            __tracebackhide__ = True
            run_examples(run, strategy, options, seed, key)

        test.__name__, test.__doc__ = run.__name__, run.__doc__
        test.is_hypothesis_test = True  # type: ignore[attr-defined]  # for Hypothesis' pytest plugin
        return test

    def examine(self, target: Target, example: Any) -> None:
        """Raise if an example contradicts the statement on a target, or crashed there before."""
        __tracebackhide__ = True
        with self.watching(target), numbers_for(target):
            if not RERUN.examine(self, target, example):
                self.body(target, example)

    @contextlib.contextmanager
    def watching(self, target: Target) -> Iterator[None]:
        """Count the kernels that are launched inside, and notice a lost GPU context."""
        with contextlib.ExitStack() as stack:
            if target.is_simulated:
                count = counting_launches(lambda: COVERAGE.launches.update([self.function]))
                stack.enter_context(count)
            if target.device == "cuda":
                stack.enter_context(noticing_lost_context(target.device))
            yield


def numbers_for(target: Target) -> contextlib.AbstractContextManager[None]:
    """Return a context in which drawn calls have only the numbers that a target takes."""
    takes_all = target.implementation.adapter.takes_numpy_scalars
    return contextlib.nullcontext() if takes_all else only_python_numbers()


def seed_of(profile: Profile, name: str) -> int | None:
    """Return the seed of a test, from a profile's seed and the test's name; None for a new one.

    Hypothesis takes the seed of the run or hashes the source of the test. Both are the same for all
    tests here, so all would draw the same examples.
    """
    return None if profile.seed is None else zlib.crc32(f"{profile.seed} {name}".encode())


def database_key(target: Target, name: str) -> bytes:
    """Return the key of a test in the database of failing examples."""
    return f"{target.implementation.name} {target.name} {name}".encode()


def _run_for_most_severe(
    test: Callable[[], None], tolerated: set[Finding], database: Examples | None
) -> None:
    """Run a test; if it fails, look for a graver failure in the same examples.

    Args:
        test: The test.
        tolerated: The findings that the test ignores; updated here.
        database: Where failing examples are stored; those of ignored findings are kept.
    """
    __tracebackhide__ = True
    tolerated.clear()
    failure: BaseException | None = None
    while failure is None or finding_of(failure) is not Finding.WRONG_ANSWER:
        if database is not None:
            database.deletes = failure is None
        try:
            test()
        except RAISED as error:
            failure = error
            tolerated.update(one for one in Finding if one.weight <= finding_of(error).weight)
        else:
            break
    if database is not None:
        database.deletes = True
    if failure is not None:
        raise failure


class FixedCheck(Check):
    """A check whose only example is constant, so that it runs once."""

    def bind(
        self, target: Target, profile: Profile, size: str, *, shrink: bool = True
    ) -> Callable[[], None]:
        """Return a test of this statement on a target, a function of no arguments."""
        once = dataclasses.replace(
            profile, other_examples=1, large_examples=1, is_random=False, database=None
        )
        return super().bind(target, once, size, shrink=shrink)


def seeded(profile: Profile, name: str) -> Callable[[Any], Any]:
    """Return a decorator that seeds a Hypothesis test by a profile's seed and a name."""
    seed = seed_of(profile, name)
    return hypothesis.seed(seed) if seed is not None else lambda test: test


def property_check(
    function: str,
    examples: Callable[[Preset], SearchStrategy[Any]],
    *,
    goals: Goals | None = None,
    has_kernel: bool = False,
    presets: Sequence[Preset] | None = None,
    kind: Kind = Kind.LAW,
    tests_invalid_inputs: bool = False,
) -> Callable[[Callable[[Target, Any], None]], Check]:
    """Make a check of a property that does not depend on `reference`.

    Args:
        function: The function that the statement is about.
        examples: The strategy of examples, by preset.
        goals: The coverage goals, as predicates on an example.
        has_kernel: Whether the function has a kernel.
        presets: The presets to draw from; None for the target's.
        kind: The kind of check, which determines the number of examples.
        tests_invalid_inputs: Whether its calls are invalid, or may be.

    Returns:
        A decorator of the property: a function of a target and an example that raises if the
        example contradicts it. Its docstring is the statement.
    """
    named = goals or {}

    def decorate(body: Callable[[Target, Any], None]) -> Check:
        return Check(
            function,
            kind,
            examples,
            body,
            (body.__doc__ or "").strip(),
            list(named),
            lambda example: reached_goals(example, named),
            has_kernel,
            presets=presets,
            tests_invalid_inputs=tests_invalid_inputs,
        )

    return decorate


def same_in_any_order(
    function: str,
    calls: Callable[[Preset], SearchStrategy[Call]],
    shows: Callable[[Any], object],
) -> Check:
    """Return the check that the order of threads does not change what `shows` returns."""

    @property_check(function, calls, has_kernel=True)
    def any_order_of_threads(target: Target, call: Call) -> None:
        """The result does not depend on the number of blocks and threads, or on their order."""
        invocations = [Invocation(target, call) for _ in range(3)]
        results = [one.answer(checked=False, seed=i) for i, one in enumerate(invocations)]
        found = [shows(result) for result in results]
        assert found == found[:1] * len(found)

    return any_order_of_threads
