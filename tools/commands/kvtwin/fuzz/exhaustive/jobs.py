"""A range of a scope's cases, as a job for a worker.

Before each case the worker notes `scope name:index`, so that the case in which it crashes is known.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Mapping
from typing import ClassVar, Final

from conformance.messages.mismatch import Mismatch
from conformance.targets.implementations import load_implementations
from conformance.targets.target import Target, choose_targets
from conformance.values.call import Call
from conformance.values.differences import Difference
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.exhaustive.comparing import Case, Comparer
from kvtwin.fuzz.exhaustive.registry import all_scopes, function_of
from kvtwin.fuzz.exhaustive.spaces import Scope
from kvtwin.fuzz.workers.jobs import WorkerContext

CHUNK: Final = 256
"""The number of cases after which read-only arguments are checked for changes."""

JOB_SECONDS: Final = 10.0
"""The time after which a job ends; its other cases become another job."""

MAX_REPORTED: Final = 8
"""The most failures with different keys that a job reports; others are only counted."""


@functools.cache
def targets_of(subject: Subject) -> Mapping[str, Target]:
    """Return the targets that are compared with `reference`, by name; `host` if none is named.

    Args:
        subject: What is under test.

    Raises:
        ValueError: The implementation or the target is unknown.
    """
    implementations = load_implementations(subject.impl, subject.adapter)
    chosen = choose_targets(subject.target or "host", implementations)
    return {target.name: target for target in chosen}


@dataclasses.dataclass(frozen=True)
class CaseFailure:
    """A case on which a target differs from `reference`, or crashes.

    Attributes:
        target: The target's name.
        scope: The scope's name.
        index: The case.
        function: The function or class under test.
        field: The path of the first difference, without indices; empty for a crash.
        line: The failure in a line.
        is_crash: Whether the worker was lost in the case.
    """

    target: str
    scope: str
    index: int
    function: str
    field: str
    line: str
    is_crash: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """The deduplication key of a failure: the function, the target and the field."""
        return self.function, self.target, self.field

    @property
    def text(self) -> str:
        """The failure in a line."""
        return f"FAILS: {self.function} on {self.target}, {self.scope}:{self.index}: {self.line}"


@dataclasses.dataclass(frozen=True)
class ExhaustiveResult:
    """The result of a job.

    Attributes:
        start: The first case.
        stop: The end of the compared cases; before the job's end if its time was over.
        failed: The number of cases that failed.
        declared: The number of other cases that differ, as the implementation's adapter declares.
        seconds: How long they took.
    """

    start: int
    stop: int
    failed: int
    declared: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ExhaustiveJob:
    """The cases `start .. stop - 1` of a scope.

    Attributes:
        subject: What is under test.
        target: The target's name.
        scale: How large the bounds of the scopes are.
        scope: The scope's name.
        start: The first case.
        stop: The end of the cases.
    """

    subject: Subject
    target: str
    scale: int
    scope: str
    start: int
    stop: int
    hang_timeout_seconds: ClassVar[None] = None

    @property
    def name(self) -> str:
        """The name in the display and the report."""
        return f"exhaustive:{self.scope}:{self.start}@{self.target}"

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.target.rpartition(":")[2] == "cuda"

    def run(self, worker: WorkerContext) -> ExhaustiveResult:
        """Compare the cases in a worker process, and report those that fail."""
        began = time.perf_counter()
        scope = all_scopes(self.scale)[self.scope]
        target = targets_of(self.subject)[self.target]
        comparer = Comparer(target)
        reported: set[tuple[str, str, str]] = set()
        failed = declared = 0
        at, until = self.start, time.perf_counter() + JOB_SECONDS
        while at < self.stop:
            stop = min(at + CHUNK, self.stop)
            for index, difference in compare_cases(comparer, scope, at, stop, worker).items():
                if _is_declared(target, scope.cases.item(index), difference):
                    declared += 1
                    continue
                failed += 1
                failure = _failure(target.name, scope, index, difference)
                if failure.key not in reported and len(reported) < MAX_REPORTED:
                    reported.add(failure.key)
                    worker.report(failure)
            at = stop
            if worker.is_over() or time.perf_counter() > until:
                break
        seconds = time.perf_counter() - began
        return ExhaustiveResult(self.start, at, failed, declared, seconds)


def compare_cases(
    comparer: Comparer, scope: Scope, start: int, stop: int, worker: WorkerContext
) -> dict[int, Difference]:
    """Compare a range of cases; find those that change a read-only argument.

    Args:
        comparer: Compares them.
        scope: The scope.
        start: The first case.
        stop: The end of the cases.
        worker: Notes the case that runs.

    Returns:
        The first difference of each case that fails, by its index.
    """

    def compare(*, is_alone: bool) -> dict[int, Difference]:
        found: dict[int, Difference] = {}
        for index in range(start, stop):
            worker.note_input(f"{scope.name}:{index}".encode())
            difference = comparer.compare(scope.cases.item(index))
            if is_alone:  # with newly converted arguments, which it may not change
                difference = comparer.find_change() or difference
            if difference is not None:
                found[index] = difference
        return found

    with comparer.running():
        found = compare(is_alone=False)
        if comparer.find_change() is not None:
            # A changed argument also makes later calls fail.
            found = compare(is_alone=True) or found
    return found


def _failure(target: str, scope: Scope, index: int, difference: Difference) -> CaseFailure:
    function = function_of(scope.cases.item(index))
    field = re.sub(r"\[\d+\]", "[]", difference.path)
    return CaseFailure(target, scope.name, index, function, field, difference.line)


def _is_declared(target: Target, case: Case, difference: Difference) -> bool:
    """Return whether a difference is a deviation that the implementation's adapter declares."""
    error = AssertionError(difference.line)
    if isinstance(case, Call):
        error = Mismatch(case, target.name, difference)
    return target.excuses(function_of(case), error)


def crash_of(job: ExhaustiveJob, reason: str, note: bytes) -> CaseFailure:
    """Return the failure of the case in which a worker died, hung or took too much memory.

    Args:
        job: The job that was lost.
        reason: How it was lost: `signal SIGSEGV`, `hang`.
        note: The worker's last note, `scope name:index`; empty without one.
    """
    index = int(note.decode().rpartition(":")[2] or job.start)
    function = function_of(all_scopes(job.scale)[job.scope].cases.item(index))
    line = f"the worker was lost: {reason}"
    return CaseFailure(job.target, job.scope, index, function, "", line, is_crash=True)
