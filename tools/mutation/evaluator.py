"""Runs tests on mutants: which tests, in which order, and what follows from their results.

A mutant is evaluated by the tests that reach it in the original. A test draws the same examples
every time, so one that does not reach a line does the same whatever is there.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from tools.mutation.child import Finding, Inventory, Known, Setup, evaluate, measure, take_inventory
from tools.mutation.mutants import Mutant
from tools.mutation.processes import run, run_each, start_server
from tools.mutation.session import Outcome, Reached, Session, Verdict

TARGETS: Final = ("host", "sim")
"""Where the tests run."""

TIMES_THE_ORIGINAL: Final = 4
"""A test may take so many times what it took on the original, and some seconds more."""

TIMEOUTS: Final = (-signal.SIGPROF, -signal.SIGALRM)
"""How a process ends that takes too long, or that only waits."""


class Evaluator:
    """Runs tests on mutants.

    Args:
        setup: What is evaluated, and how.
        session: Has what tests reach, as far as it is known.
        workers: How many mutants are evaluated at a time.
        min_seconds: Seconds of processor time that a test may always take.
        deadline: When to begin nothing else, by `time.monotonic()`.
        is_thorough: Whether tests run that are not of a single function.

    Raises:
        RuntimeError: The tests cannot be imported.
    """

    def __init__(
        self,
        setup: Setup,
        session: Session,
        workers: int,
        min_seconds: float,
        *,
        deadline: float = float("inf"),
        is_thorough: bool = False,
    ) -> None:
        self._setup, self._session = setup, session
        self._workers, self._min_seconds = workers, min_seconds
        self._deadline, self._is_thorough = deadline, is_thorough
        self._users = setup.project.users()
        self._sources = f"{setup.project.digest()} {setup.profile}"
        self._reached = session.reached(self._sources)
        self._kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        start_server()
        received, _ = run(take_inventory, setup, TARGETS)
        self._inventory: Inventory = received[0]

    def candidates(self, module: str) -> list[Known]:
        """Return the tests in the test modules of a module and of those that import it.

        A base class is tested in the test modules of its subclasses, which import its module.
        """
        users = self._users[module]
        near = {_module(one.test) for one in self._inventory.known if one.home in users}
        near.add(own_tests(module))
        return [
            one
            for one in self._inventory.known
            if (_module(one.test) in near if one.home is not None else self._is_thorough)
        ]

    def missing(self, modules: Iterable[str]) -> list[str]:
        """Return the tests of modules of which it is not known what they reach."""
        tests = dict.fromkeys(one.test for name in modules for one in self.candidates(name))
        return [test for test in tests if test not in self._reached]

    def measure(self, tests: Iterable[str]) -> Iterator[str]:
        """Find out what tests reach, and yield each that was measured before the deadline.

        Raises:
            RuntimeError: A test fails on the original.
        """
        for test, reached in run_each(self._measure, tests, self._workers):
            if reached is not None:
                self._reached[test] = reached
                self._session.store_reached(self._sources, test, reached)
                yield test

    def _measure(self, test: str) -> Reached | None:
        if time.monotonic() > self._deadline:
            return None
        try:
            received, exit_code = run(measure, self._setup, test)
        except RuntimeError as error:
            raise RuntimeError(f"{test} fails without a mutant: {error}") from error
        if not received:
            raise RuntimeError(f"{test} ends its process without a mutant: {exit_code}")
        return received[0]

    def learn(self, mutant: Mutant, outcome: Outcome) -> None:
        """Run the test that killed a mutant first on others of the same function."""
        if outcome.by:
            self._kills[mutant.module, mutant.place.function][outcome.by] += 1

    def tests_for(self, mutant: Mutant) -> dict[str, float]:
        """Return the tests that reach a mutant, the likeliest to kill first, and their limits."""
        kills = self._kills[mutant.module, mutant.place.function]
        place = mutant.place
        at_import = self._inventory.import_lines.get(mutant.module, frozenset())
        runs_at_import = place.is_import_time or _count(at_import, place.lines) > 0
        found: list[tuple[tuple[object, ...], str, float]] = []
        for one in self.candidates(mutant.module):
            reached = self._reached[one.test]
            lines = reached.lines.get(mutant.module, frozenset())
            if runs_at_import or _count(lines, place.lines):
                order = (
                    -kills[one.test],
                    _module(one.test) != own_tests(mutant.module),
                    # A test that reaches a function's refusals checks what it refuses.
                    -_count(lines, place.around or (0, sys.maxsize)),
                    reached.seconds,
                )
                seconds = self._min_seconds + TIMES_THE_ORIGINAL * reached.seconds
                found.append((order, one.test, seconds))
        return {test: seconds for _, test, seconds in sorted(found)}

    def evaluate(self, mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, Outcome]]:
        """Evaluate mutants until the deadline, and yield each with its outcome.

        Raises:
            RuntimeError: An evaluating process failed, and not because of its mutant.
        """
        for mutant, outcome in run_each(self._evaluate, mutants, self._workers):
            if outcome is not None:
                yield mutant, outcome

    def _evaluate(self, mutant: Mutant) -> Outcome | None:
        if time.monotonic() > self._deadline:
            return None
        limits = self.tests_for(mutant)
        try:
            received, exit_code = run(evaluate, self._setup, mutant, limits)
        except RuntimeError as error:
            raise RuntimeError(f"evaluating {mutant.path}:{mutant.start[0]}: {error}") from error
        outcome = outcome_of(received, exit_code, has_tests=bool(limits))
        self.learn(mutant, outcome)
        return outcome


def own_tests(module: str) -> str:
    """Return the name of a module's own test module.

    >>> own_tests("kernels.multimodal")
    'test_multimodal'
    """
    return f"test_{module.rpartition('.')[2]}"


def _module(test: str) -> str:
    return test.partition("::")[0]


def _count(lines: Iterable[int], span: tuple[int, int]) -> int:
    """Return how many of some lines are in a span."""
    return sum(span[0] <= line <= span[1] for line in lines)


def outcome_of(received: list[object], exit_code: int, *, has_tests: bool) -> Outcome:
    """Return the outcome of a mutant, from what its process has sent and how that ended."""
    last = received[-1] if received else "import"
    if isinstance(last, Finding):
        alive = Verdict.SURVIVED if has_tests else Verdict.UNREACHED
        return Outcome(Verdict.KILLED if last.by else alive, last.by, last.error, last.num_tests)
    if exit_code in TIMEOUTS:
        return Outcome(Verdict.TIMEOUT, str(last), "it did not end")
    name = signal.Signals(-exit_code).name if exit_code < 0 else str(exit_code)
    return Outcome(Verdict.CRASHED, str(last), f"the process ended with {name}")
