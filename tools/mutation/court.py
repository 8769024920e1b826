"""Which checks judge a mutant, in which order, and what comes of it."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tools.mutation.judge import Bench, CheckId, Finding, Limited, judge
from tools.mutation.mutants import Mutant
from tools.mutation.reach import Census, Known, Reached, ReachFile, measure, take_census
from tools.mutation.session import Judgement, Verdict
from tools.mutation.workers import Ended, Task, run_all

TIMES_THE_ORIGINAL: Final = 4
"""A check may take so many times what it took on the original, and some seconds more."""


SAVE_EVERY: Final = 50
"""Checks that are measured between two writings: a run that is ended loses no more."""


class Court:
    """Judges mutants.

    Args:
        bench: What is judged, and how.
        targets: Where the checks run.
        workers: How many judges work at a time.
        patience: Seconds of processor time that a check may always take.
        is_thorough: Whether those checks judge too that are about no one function.

    Raises:
        RuntimeError: The checks cannot be imported.
    """

    def __init__(
        self,
        bench: Bench,
        targets: Sequence[str],
        workers: int,
        patience: float,
        *,
        is_thorough: bool = False,
    ) -> None:
        self._bench = bench
        self._workers = workers
        self._patience = patience
        self._is_thorough = is_thorough
        self._users = bench.project.users()
        self._file = ReachFile(bench.folder / "reach.json", bench.project.digest())
        census = Task("census", take_census, (bench, targets))
        said = [message for _, message in run_all([census], 1, bench)]
        if not isinstance(said[0], Census):
            raise RuntimeError(f"the checks cannot be imported: {said[0]}")  # noqa: TRY004
        self._known = said[0].known
        self._import_lines = said[0].import_lines
        self._kills: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def candidates(self, module: str) -> list[Known]:
        """Return the checks of a module: all that stand beside one of its users' functions.

        Those of a base class stand beside those of the classes that extend it elsewhere, and come
        by these too.
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
            Task(checks, measure, (self._bench, checks, deadline))
            for checks in sorted(by_module.values(), key=len, reverse=True)
        ]
        try:
            for task, message in run_all(tasks, self._workers, self._bench):
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

    def learn(self, mutant: Mutant, judgement: Judgement) -> None:
        """Let the check that saw a mutant be asked first about others of its function."""
        if judgement.by:
            self._kills[mutant.module, mutant.place.function][judgement.by] += 1

    def judges(self, mutant: Mutant) -> list[Limited]:
        """Return the checks that come by a mutant, the likeliest to see it first."""
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
                seconds = self._patience + TIMES_THE_ORIGINAL * reached.seconds
                order = (
                    -kills[str(known.check)],
                    known.check.module != own,
                    # Who comes by the refusals of a function looks at what is refused.
                    -_count(lines, place.around or (0, sys.maxsize)),
                    reached.seconds,
                )
                found.append((order, Limited(known.check, seconds)))
        return [limited for _, limited in sorted(found, key=lambda item: item[0])]

    def judge(
        self, mutants: Iterable[Mutant], deadline: float | None = None
    ) -> Iterator[tuple[Mutant, Judgement]]:
        """Judge mutants, and yield each with what was found, in the order of their ends.

        Args:
            mutants: The mutants.
            deadline: When to begin no other, by `time.monotonic()`.

        Raises:
            RuntimeError: A judge failed, and not for its mutant.
        """

        def tasks() -> Iterator[Task]:
            for mutant in mutants:
                if deadline is not None and time.monotonic() > deadline:
                    return
                judges = self.judges(mutant)
                what = (self._bench, mutant.module, mutant.text, judges)
                yield Task((mutant, judges), judge, what)

        latest: dict[str, object] = {}
        for task, message in run_all(tasks(), self._workers, self._bench):
            mutant, judges = task.subject
            if isinstance(message, str):
                raise RuntimeError(f"the judge of {mutant.path}:{mutant.start[0]}: {message}")  # noqa: TRY004
            if not isinstance(message, Ended):
                latest[mutant.digest] = message
                continue
            judgement = judgement_of(
                latest.pop(mutant.digest, None), message, has_judges=bool(judges)
            )
            self.learn(mutant, judgement)
            yield mutant, judgement


def own_tests(module: str) -> str:
    """Return the name of a module's own test module.

    >>> own_tests("kernels.multimodal")
    'test_multimodal'
    """
    return f"test_{module.rpartition('.')[2]}"


def _count(lines: Iterable[int], span: tuple[int, int]) -> int:
    """Return how many of some lines lie in a span."""
    return sum(span[0] <= line <= span[1] for line in lines)


def judgement_of(latest: object, ended: Ended, *, has_judges: bool) -> Judgement:
    """Return what came of a mutant, from the last its judge said and how that ended."""
    if isinstance(latest, Finding):
        verdict = Verdict.SURVIVED if has_judges else Verdict.UNREACHED
        if latest.by:
            verdict = Verdict.KILLED
        return Judgement(verdict, latest.by, latest.error, latest.seconds, latest.num_checks)
    by = str(latest.check) if isinstance(latest, Limited) else "import"
    if ended.is_late or ended.exitcode == -signal.SIGPROF:
        seconds = latest.seconds if isinstance(latest, Limited) else 0.0
        return Judgement(Verdict.TIMEOUT, by, "it did not end", seconds)
    name = signal.Signals(-ended.exitcode).name if ended.exitcode < 0 else str(ended.exitcode)
    return Judgement(Verdict.CRASHED, by, f"the process ended with {name}")
