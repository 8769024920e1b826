"""A range of a scope's cases, as a job for a worker.

Before each case the worker notes `scope name:index`, so that the case in which it crashes is known.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final, Protocol

from conformance.comparison import Difference
from conformance.implementations import load_implementations
from conformance.targets import Target, choose_targets
from tools.fuzz.exhaustive.comparing import Comparer
from tools.fuzz.exhaustive.registry import all_scopes
from tools.fuzz.exhaustive.scope import Scope

CHUNK: Final = 256
"""Cases after which it is checked that no argument has changed that may not."""

MOST_REPORTED: Final = 8
"""Failures that a job reports, of different functions or fields; the others are only counted."""


class Worker(Protocol):
    """What a job uses of the worker that runs it."""

    def note_input(self, data: bytes) -> None:
        """Write down the case that runs next, in memory that survives a crash of the worker."""

    def report(self, message: object) -> None:
        """Send a message to the coordinator at once."""

    def is_over(self) -> bool:
        """Return whether the job should end soon."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is compared with `reference`, as plain values that travel to workers.

    Attributes:
        target: One target, as `choose_targets` calls it: `host`, `mine:host`.
        impl: Modules or files under test; nothing: `fast`.
        adapter: Their adapters; none, one for all, or one for each.
        scale: How large the bounds of the scopes are.
    """

    target: str = "host"
    impl: tuple[str, ...] = ()
    adapter: tuple[str, ...] = ()
    scale: int = 1

    def find_target(self) -> Target:
        """Return the target.

        Raises:
            ValueError: There is no such target here.
        """
        return _find_target(self)


@functools.cache
def _find_target(subject: Subject) -> Target:
    name = subject.target.rpartition(":")[2]
    implementations = load_implementations(subject.impl, subject.adapter)
    targets = {target.name: target for target in choose_targets(name, implementations)}
    if subject.target not in targets:
        raise ValueError(f"target {subject.target!r} is unknown; there are {', '.join(targets)}")
    return targets[subject.target]


@dataclasses.dataclass(frozen=True)
class CaseFailure:
    """A case on which the target is not as `reference`; `failing_call` makes its call.

    Attributes:
        scope: The scope's name.
        index: The case.
        function: The function that it is about.
        field: The path of the first difference, without indices; empty for a crash.
        difference: The first difference; None for a crash.
        line: The failure in a line.
    """

    scope: str
    index: int
    function: str
    field: str
    difference: Difference | None
    line: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two failures the same: the function and the field."""
        return self.function, self.field


@dataclasses.dataclass(frozen=True)
class ExhaustiveResult:
    """What a job has done.

    Attributes:
        scope: The scope's name.
        start: The first case.
        stop: Where it ended; before the job's own end if it was stopped.
        failed: How many of the cases failed.
        seconds: How long they took.
    """

    scope: str
    start: int
    stop: int
    failed: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ExhaustiveJob:
    """The cases `start .. stop - 1` of a scope.

    Attributes:
        subject: What is compared.
        scope: The scope's name.
        start: The first case.
        stop: The end of the cases.
    """

    subject: Subject
    scope: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What the display and the report call it."""
        return f"exhaustive {self.scope} {self.start:,} to {self.stop - 1:,}"

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.subject.target.rpartition(":")[2] == "cuda"

    def run(self, worker: Worker) -> ExhaustiveResult:
        """Compare the cases in a worker process, and report those that fail."""
        began = time.perf_counter()
        scope = all_scopes(self.subject.scale)[self.scope]
        comparer = Comparer(self.subject.find_target())
        reported: set[tuple[str, str]] = set()
        failed: Counter[str] = Counter()
        at = self.start
        while at < self.stop and not (worker.is_over() and at > self.start):
            stop = min(at + CHUNK, self.stop)
            for failure in compare_cases(comparer, scope, at, stop, worker):
                failed[scope.name] += 1
                if failure.key not in reported and len(reported) < MOST_REPORTED:
                    reported.add(failure.key)
                    worker.report(failure)
            at = stop
        seconds = time.perf_counter() - began
        return ExhaustiveResult(self.scope, self.start, at, failed.total(), seconds)


def compare_cases(
    comparer: Comparer, scope: Scope, start: int, stop: int, worker: Worker
) -> list[CaseFailure]:
    """Compare a range of cases; find which of them changes what it may not.

    Args:
        comparer: What compares them.
        scope: The scope.
        start: The first case.
        stop: The end of the cases.
        worker: Where to note the case that runs.

    Returns:
        The failures, in the order of the cases, at most one of each.
    """
    found = {}
    with comparer.running():
        for index, difference in _differences(comparer, scope, start, stop, worker):
            found[index] = difference
        if comparer.find_change() is not None:
            for index, difference in _changes(comparer, scope, start, stop, worker):
                found.setdefault(index, difference)
    return [_failure(scope, index, found[index]) for index in sorted(found)]


def _differences(
    comparer: Comparer, scope: Scope, start: int, stop: int, worker: Worker
) -> Iterator[tuple[int, Difference]]:
    for index in range(start, stop):
        worker.note_input(noted(scope.name, index))
        difference = comparer.compare(scope.case(index))
        if difference is not None:
            yield index, difference


def _changes(
    comparer: Comparer, scope: Scope, start: int, stop: int, worker: Worker
) -> Iterator[tuple[int, Difference]]:
    """Compare the cases again, each with arguments of its own, and yield what they change."""
    for index in range(start, stop):
        worker.note_input(noted(scope.name, index))
        comparer.compare(scope.case(index))
        change = comparer.find_change()
        if change is not None:
            yield index, change


def _failure(scope: Scope, index: int, difference: Difference) -> CaseFailure:
    case = scope.case(index)
    function = getattr(case, "function", "") or scope.functions[0]
    field = re.sub(r"\[\d+\]", "[]", difference.path)
    return CaseFailure(scope.name, index, function, field, difference, difference.line)


def noted(scope: str, index: int) -> bytes:
    """Return what a worker notes before a case.

    >>> noted("local lengths", 7)
    b'local lengths:7'
    """
    return f"{scope}:{index}".encode()


def read_note(data: bytes) -> tuple[str, int] | None:
    """Return the scope and the case that a worker noted last; None if it noted none.

    >>> read_note(b"local lengths:7")
    ('local lengths', 7)
    """
    scope, _, index = data.decode().rpartition(":")
    return (scope, int(index)) if scope else None


def crash_of(job: ExhaustiveJob, index: int, reason: str) -> CaseFailure:
    """Return the failure of a case in which the worker was lost.

    Args:
        job: The job that was lost.
        index: The case that it noted last.
        reason: How it was lost: `signal SIGSEGV`, `hang`.
    """
    scope = all_scopes(job.subject.scale)[job.scope]
    function = getattr(scope.case(index), "function", "") or scope.functions[0]
    return CaseFailure(job.scope, index, function, "", None, f"the worker was lost: {reason}")
