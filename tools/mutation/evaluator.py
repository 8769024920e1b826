"""Run tests on mutants: select and order the tests, and collect the outcomes.

This process imports the project, and runs a few examples of each test to find which lines it
reaches. A mutant is evaluated in a forked process, by these steps:

1. a few examples of the 20 tests that reach its lines and are the likeliest to fail;
2. all examples of the module's own tests, if they reach its function;
3. a few examples of the other tests that reach its lines;
4. all examples of the other tests that reach its function.

If the mutant changes a check, tests of calls that must be rejected come first in each step. If its
code runs at import, any test may reach it, and the tests of its module come first.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, takewhile
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final, NamedTuple

from tools.mutation.mutants import Mutant
from tools.mutation.project import Project
from tools.mutation.session import Outcome, Verdict
from tools.mutation.tracer import Tracer
from tools.mutation.trial import IDLE_SECONDS, Finding, Step, Test, Trial, load_tests

FEW: Final = "brief"
"""The profile of the first run. Its examples are the first ones of the other profiles."""

REFUSALS: Final = ("same refusal", "other tensors")
"""The kinds of checks whose calls must be rejected."""

TRACED: Final = ("same answer", *REFUSALS, "law")
"""The kinds of checks whose reached lines are traced.

The other kinds call the same functions in other ways, many times, and some trace lines themselves:
they are assumed to reach the same lines.
"""

KINDS: Final = (*TRACED, "large", "memory", "conditions", "threads", "stateful")
"""The order in which all examples run."""

NUM_EARLY: Final = 20
"""The number of tests that run a few examples before the module's own tests run all of theirs."""

TIMES_THE_ORIGINAL: Final = 4
"""The time limit of a test, as a multiple of its traced time on the original, plus some seconds."""

TIMEOUTS: Final = (-signal.SIGPROF, -signal.SIGALRM)
"""The exit codes of a process that takes too long, or is idle."""


class Reached(NamedTuple):
    """The lines of the original that a few examples of a check reach.

    Attributes:
        test: The test that ran.
        seconds: Its traced processor time.
        lines: The lines, by module of the package.
    """

    test: str
    seconds: float
    lines: Mapping[str, frozenset[int]]


class Evaluator:
    """Runs tests on mutants.

    Args:
        project: The project; it must not be imported yet, and must not change.
        profile: The profile of the conformance run, which sets the number of examples.
        workers: How many mutants are evaluated at a time.
        min_seconds: Seconds of processor time that a test may always take.
        survivor_seconds: Seconds of processor time after which no more tests begin on a mutant
            that passes a few examples of each.
        deadline: When to start no more tests and mutants, by `time.monotonic()`.
    """

    def __init__(
        self,
        project: Project,
        profile: str,
        workers: int,
        min_seconds: float,
        survivor_seconds: float,
        *,
        deadline: float = float("inf"),
    ) -> None:
        self._project, self._profile, self._workers = project, profile, workers
        self._min_seconds, self._survivor_seconds = min_seconds, survivor_seconds
        self._deadline = deadline
        self._users = project.users()
        self._kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._reached: dict[str, Reached] = {}
        importlib.import_module("torch").set_num_threads(1)  # as in the conformance run
        self._tracer = Tracer(project.modules())
        with self._tracer:
            self._tests = load_tests(project)
        self._import_lines = self._tracer.take_lines()
        with suppress(ModuleNotFoundError):  # it has no loops
            compiler = importlib.import_module(f"{project.package}._native.compiler")
            self._tracer.follow_loops(compiler.COMPILED)

    @functools.cache  # noqa: B019  # as long as the process
    def candidates(self, module: str) -> list[Test]:
        """Return the tests in the test modules of a module and of those that import it.

        A base class is tested in the test modules of its subclasses, which import its module. Tests
        that are not of a single function are included.
        """
        users = self._users[module]
        near = {_module(one.name) for one in self._tests.values() if one.home in users}
        near.add(own_tests(module))
        return [
            one for one in self._tests.values() if one.home is None or _module(one.name) in near
        ]

    def missing(self, modules: Iterable[str]) -> list[Test]:
        """Return a test for each traced check whose lines were not measured yet."""
        tests = [one for name in modules for one in self.candidates(name) if one.kind in TRACED]
        first = {one.check: one for one in reversed(tests)}
        return [one for one in first.values() if one.check not in self._reached]

    def measure(self, tests: Iterable[Test]) -> Iterator[Test]:
        """Measure the lines that tests reach, until the deadline; yield each measured test.

        Raises:
            RuntimeError: A test fails on the original.
        """
        for test in tests:
            if time.monotonic() > self._deadline:
                return
            started = time.process_time()
            try:
                with self._tracer:
                    test.bind(FEW)()
            except Exception as error:
                raise RuntimeError(
                    f"{test.name} fails without a mutant: {type(error).__name__}: {error}"
                ) from error
            seconds = time.process_time() - started
            self._reached[test.check] = Reached(test.name, seconds, self._tracer.take_lines())
            yield test

    def learn(self, mutant: Mutant, outcome: Outcome) -> None:
        """Record the test that killed a mutant: it runs first on others of the same function."""
        if outcome.by:
            self._kills[mutant.module, mutant.place.function][outcome.by] += 1

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Return whether a mutant's lines run when the project is imported."""
        lines = self._import_lines.get(mutant.module, frozenset())
        return mutant.place.is_import_time or _count(lines, mutant.place.lines) > 0

    def steps_for(self, mutant: Mutant) -> tuple[list[Step], list[Step]]:
        """Return the steps of a mutant: those with a few examples, and those with all examples."""
        kills = self._kills[mutant.module, mutant.place.function]
        own, is_everywhere = own_tests(mutant.module), self.runs_at_import(mutant)
        lines, around = mutant.place.lines, mutant.place.around or (0, sys.maxsize)
        few: list[tuple[tuple[object, ...], Step]] = []
        reached_by: dict[str, float] = {}
        candidates = self.candidates(mutant.module)
        for one in candidates:
            reached = self._reached.get(one.check)
            if reached is None or reached.test != one.name:
                continue
            here = reached.lines.get(mutant.module, frozenset())
            limit = self._min_seconds + TIMES_THE_ORIGINAL * reached.seconds
            if is_everywhere or _count(here, lines):
                order = -kills[one.name], _module(one.name) != own, reached.seconds
                few.append((order, Step(one.name, FEW, limit)))
            if is_everywhere or _count(here, around):
                before = reached_by.get(one.function, 0.0)
                reached_by[one.function] = max(before, reached.seconds)
        rest: list[tuple[tuple[object, ...], Step]] = []
        for one in candidates:
            if one.function in reached_by or one.home is None:
                seconds = reached_by.get(one.function, 0.0)
                order = KINDS.index(one.kind), _module(one.name) != own, seconds
                limit = self._min_seconds + IDLE_SECONDS
                rest.append((order, Step(one.name, self._profile, limit)))
        if not few and not reached_by:
            return [], []
        return [step for _, step in sorted(few)], [step for _, step in sorted(rest)]

    def evaluate(
        self, mutants: Iterable[Mutant], is_declared: Callable[[Mutant], object]
    ) -> Iterator[tuple[Mutant, Outcome]]:
        """Evaluate mutants until the deadline, and yield each with its outcome.

        Args:
            mutants: The mutants.
            is_declared: Whether a mutant is declared; if so, only a few examples run.
        """
        planting = importlib.import_module("tools.bugs.planting")
        for name in self._users:
            planting.functions_of(sys.modules[f"{self._project.package}.{name}"])
        gc.collect()
        gc.freeze()  # the collector does not write to these pages: forks share them
        left = takewhile(lambda _: time.monotonic() < self._deadline, mutants)
        running: list[_Running] = []
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            try:
                while True:
                    more = islice(left, self._workers - len(running))
                    running += [_Running(self._trial(one, folder, is_declared)) for one in more]
                    if not running:
                        return
                    ends = [(one.connection, one.process.sentinel) for one in running]
                    # A timeout: subprocesses of a process may keep its ends open.
                    wait(chain(*ends), timeout=1)
                    for one in [one for one in running if one.has_ended()]:
                        running.remove(one)
                        outcome = one.outcome()
                        self.learn(one.mutant, outcome)
                        yield one.mutant, outcome
            finally:
                gc.unfreeze()
                for one in running:
                    one.kill()

    def _trial(self, mutant: Mutant, folder: str, is_declared: Callable[[Mutant], object]) -> Trial:
        few, rest = self.steps_for(mutant)
        if changes_a_check(mutant):
            for steps in (few, rest):
                steps.sort(key=lambda step: self._tests[step.test].kind not in REFUSALS)
        steps = few if is_declared(mutant) else order_steps(few, rest, own_tests(mutant.module))
        runs_at_import = self.runs_at_import(mutant)
        if runs_at_import:  # a few examples of all tests would use up the time
            own = own_tests(mutant.module)
            steps.sort(key=lambda step: _module(step.test) != own)
        return Trial(
            self._project,
            self._tests,
            mutant,
            steps,
            runs_at_import,
            self._survivor_seconds,
            Path(folder),
        )


class _Running:
    """A process that evaluates a mutant."""

    def __init__(self, trial: Trial) -> None:
        context = get_context("fork")
        self.mutant = trial.mutant
        self.is_reached = any(step.profile == FEW for step in trial.steps)
        self.connection, theirs = context.Pipe(duplex=False)
        self.received: list[object] = []
        self.process = context.Process(target=trial.run, args=(theirs,))
        self.process.start()
        theirs.close()

    def has_ended(self) -> bool:
        """Receive pending messages, and return whether the process has ended."""
        is_alive = self.process.is_alive()  # read before the last messages are received
        with suppress(EOFError, OSError):
            while self.connection.poll():
                self.received.append(self.connection.recv())
        return not is_alive

    def outcome(self) -> Outcome:
        """Return the outcome of the mutant, after the process has ended."""
        self.kill()  # its subprocesses
        return outcome_of(self.received, self.process.exitcode or 0, is_reached=self.is_reached)

    def kill(self) -> None:
        """Kill the process and its subprocesses."""
        self.process.kill()
        if self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.connection.close()


def changes_a_check(mutant: Mutant) -> bool:
    """Return whether a mutant changes a line that raises, or that calls a check."""
    return "raise " in mutant.before or "check_" in mutant.before


def order_steps(few: Sequence[Step], rest: Sequence[Step], own: str) -> list[Step]:
    """Return the steps of an undeclared mutant, the likeliest to fail first.

    Only `NUM_EARLY` of `few` come first: hundreds would use up the time of the module's own tests.

    Args:
        few: The steps with a few examples.
        rest: The steps with all examples.
        own: The module's own test module.
    """
    of_own = [step for step in rest if _module(step.test) == own]
    of_others = [step for step in rest if _module(step.test) != own]
    return [*few[:NUM_EARLY], *of_own, *few[NUM_EARLY:], *of_others]


def own_tests(module: str) -> str:
    """Return the name of a module's own test module.

    >>> own_tests("kernels.multimodal")
    'test_multimodal'
    """
    return f"test_{module.rpartition('.')[2]}"


def _module(test: str) -> str:
    return test.partition("::")[0]


def _count(lines: Iterable[int], span: tuple[int, int]) -> int:
    """Return how many of the lines are in a span."""
    return sum(span[0] <= line <= span[1] for line in lines)


def outcome_of(received: list[object], exit_code: int, *, is_reached: bool) -> Outcome:
    """Return the outcome of a mutant, from the messages and the exit code of its process."""
    last = received[-1] if received else "import"
    if isinstance(last, Finding):
        alive = Verdict.SURVIVED if is_reached else Verdict.UNREACHED
        verdict = Verdict.KILLED if last.by else alive
        return Outcome(verdict, last.by, last.error, last.num_tests, last.num_left)
    if exit_code in TIMEOUTS:
        return Outcome(Verdict.TIMEOUT, str(last), "it did not end")
    name = signal.Signals(-exit_code).name if exit_code < 0 else str(exit_code)
    return Outcome(Verdict.CRASHED, str(last), f"the process ended with {name}")
