"""Runs checks on mutants: which checks, in which order, and what follows from their results."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tools.mutation.mutant_process import CheckId, Finding, Limited, Setup, evaluate
from tools.mutation.mutants import Mutant
from tools.mutation.reach import Inventory, Known, Reached, ReachFile, measure, take_inventory
from tools.mutation.session import Outcome, Verdict
from tools.mutation.workers import Ended, Task, run_all

TIMES_THE_ORIGINAL: Final = 4
"""A check may take so many times what it took on the original, and some seconds more."""

SAVE_EVERY: Final = 50
"""Checks that are measured between two writings: a run that is ended loses no more."""


class Evaluator:
    """Runs checks on mutants.

    Args:
        setup: What is evaluated, and how.
        targets: Where the checks run.
        workers: How many mutants are evaluated at a time.
        min_seconds: Seconds of processor time that a check may always take.
        is_thorough: Whether checks run that are not about a single function.

    Raises:
        RuntimeError: The checks cannot be imported.
    """

    def __init__(
        self,
        setup: Setup,
        targets: Sequence[str],
        workers: int,
        min_seconds: float,
        *,
        is_thorough: bool = False,
    ) -> None:
        self._setup = setup
        self._workers = workers
        self._min_seconds = min_seconds
        self._is_thorough = is_thorough
        self._users = setup.project.users()
        self._file = ReachFile(setup.folder / "reach.json", setup.project.digest())
        inventory = Task("inventory", take_inventory, (setup, targets))
        said = [message for _, message in run_all([inventory], 1, setup)]
        if not isinstance(said[0], Inventory):
            raise RuntimeError(f"the checks cannot be imported: {said[0]}")  # noqa: TRY004
        self._known = said[0].known
        self._import_lines = said[0].import_lines
        self._kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def candidates(self, module: str) -> list[Known]:
        """Return the checks in the test modules of a module and of those that import it.

        Checks of a base class are in the test modules of the classes that extend it elsewhere.
        """
        users = self._users[module]
        near = {known.check.module for known in self._known if known.home in users}
        near.add(own_tests(module))
        return [
            known
            for known in self._known
            if (known.check.module in near and known.home is not None)
            or (known.home is None and self._is_thorough)
        ]

    def measure(self, modules: Iterable[str], deadline: float | None = None) -> Iterator[CheckId]:
        """Find out which lines the modules' checks reach, and yield each that was measured.

        Args:
            modules: The modules.
            deadline: When to begin no other check, by `time.monotonic()`.

        Raises:
            RuntimeError: A check fails on the original.
        """
        chosen = {known.check: known for module in modules for known in self.candidates(module)}
        by_module: defaultdict[str, list[CheckId]] = defaultdict(list)
        for check in self._file.missing(chosen.values()):
            by_module[check.module].append(check)
        tasks = [
            Task(checks, measure, (self._setup, checks, deadline))
            for checks in sorted(by_module.values(), key=len, reverse=True)
        ]
        try:
            for task, message in run_all(tasks, self._workers, self._setup):
                if isinstance(message, Ended) and (message.exitcode or message.is_late):
                    raise RuntimeError(f"measuring {task.subject[0].module} ended: {message}")
                if not isinstance(message, tuple):
                    continue
                check, found = message
                if not isinstance(found, Reached):
                    raise RuntimeError(f"{check} fails without a mutant: {found}")  # noqa: TRY004
                self._file.reached[str(check)] = found
                if len(self._file.reached) % SAVE_EVERY == 0:
                    self._file.save()
                yield check
        finally:
            self._file.save()

    def num_missing(self, modules: Iterable[str]) -> int:
        """Return how many checks of modules are not measured yet."""
        chosen = {known.check: known for module in modules for known in self.candidates(module)}
        return len(self._file.missing(chosen.values()))

    def learn(self, mutant: Mutant, outcome: Outcome) -> None:
        """Run the check that killed a mutant first on others of the same function."""
        if outcome.by:
            self._kills[mutant.module, mutant.place.function][outcome.by] += 1

    def checks_for(self, mutant: Mutant) -> list[Limited]:
        """Return the checks that reach a mutant, the likeliest to kill it first."""
        own = own_tests(mutant.module)
        kills = self._kills[mutant.module, mutant.place.function]
        place = mutant.place
        at_import = self._import_lines.get(mutant.module, frozenset())
        runs_at_import = place.is_import_time or _count(at_import, place.lines) > 0
        found: list[tuple[tuple[object, ...], Limited]] = []
        for known in self.candidates(mutant.module):
            reached = self._file.reached[str(known.check)]
            lines = reached.lines.get(mutant.module, frozenset())
            if runs_at_import or _count(lines, place.lines):
                seconds = self._min_seconds + TIMES_THE_ORIGINAL * reached.seconds
                order = (
                    -kills[str(known.check)],
                    known.check.module != own,
                    # A check that reaches a function's refusals checks what it refuses.
                    -_count(lines, place.around or (0, sys.maxsize)),
                    reached.seconds,
                )
                found.append((order, Limited(known.check, seconds)))
        return [limited for _, limited in sorted(found, key=lambda item: item[0])]

    def evaluate(
        self, mutants: Iterable[Mutant], deadline: float | None = None
    ) -> Iterator[tuple[Mutant, Outcome]]:
        """Evaluate mutants, and yield each with its outcome, in the order in which they end.

        Args:
            mutants: The mutants.
            deadline: When to begin no other, by `time.monotonic()`.

        Raises:
            RuntimeError: An evaluating process failed, and not because of its mutant.
        """

        def tasks() -> Iterator[Task]:
            for mutant in mutants:
                if deadline is not None and time.monotonic() > deadline:
                    return
                checks = self.checks_for(mutant)
                what = (self._setup, mutant.module, mutant.text, checks)
                yield Task((mutant, checks), evaluate, what)

        latest: dict[str, object] = {}
        for task, message in run_all(tasks(), self._workers, self._setup):
            mutant, checks = task.subject
            if isinstance(message, str):
                raise RuntimeError(f"evaluating {mutant.path}:{mutant.start[0]}: {message}")  # noqa: TRY004
            if not isinstance(message, Ended):
                latest[mutant.digest] = message
                continue
            outcome = outcome_of(latest.pop(mutant.digest, None), message, has_checks=bool(checks))
            self.learn(mutant, outcome)
            yield mutant, outcome


def own_tests(module: str) -> str:
    """Return the name of a module's own test module.

    >>> own_tests("kernels.multimodal")
    'test_multimodal'
    """
    return f"test_{module.rpartition('.')[2]}"


def _count(lines: Iterable[int], span: tuple[int, int]) -> int:
    """Return how many of some lines lie in a span."""
    return sum(span[0] <= line <= span[1] for line in lines)


def outcome_of(latest: object, ended: Ended, *, has_checks: bool) -> Outcome:
    """Return the outcome of a mutant, from the last message of its process and how that ended."""
    if isinstance(latest, Finding):
        verdict = Verdict.SURVIVED if has_checks else Verdict.UNREACHED
        if latest.by:
            verdict = Verdict.KILLED
        return Outcome(verdict, latest.by, latest.error, latest.seconds, latest.num_checks)
    by = str(latest.check) if isinstance(latest, Limited) else "import"
    if ended.is_late or ended.exitcode == -signal.SIGPROF:
        seconds = latest.seconds if isinstance(latest, Limited) else 0.0
        return Outcome(Verdict.TIMEOUT, by, "it did not end", seconds)
    name = signal.Signals(-ended.exitcode).name if ended.exitcode < 0 else str(ended.exitcode)
    return Outcome(Verdict.CRASHED, by, f"the process ended with {name}")
