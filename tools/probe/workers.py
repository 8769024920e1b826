"""Run cases in processes, and report which case crashed, hung or ran out of memory."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import mmap
import multiprocessing
import os
import re
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Final

from conformance.targets.implementations import Implementation
from kvtwin.processes import started
from tools.probe.calling import BEFORE_A_CALL, poison_numpy
from tools.probe.case import describe_call
from tools.probe.prober import Prober
from tools.probe.violation import Violation, innermost_dumped

HANG_SECONDS: Final = 20.0
"""A case that takes longer in wall time counts as hung."""

MEMORY_BYTES: Final = 1 << 30
"""The address space that a worker may allocate."""

CALLING: Final = "calling "
"""The prefix of lines that describe the next call."""

MAX_DEATHS: Final = 5
"""The number of workers of a function that may die before its other cases are skipped."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Cases of some functions, for one worker after another.

    Attributes:
        functions: The functions.
        seed: The seed of the run.
        first: The first case of each function.
        stop: The end of the cases.
    """

    functions: tuple[str, ...]
    seed: int
    first: int
    stop: int

    def __len__(self) -> int:
        return len(self.functions) * (self.stop - self.first)

    def __getitem__(self, place: int) -> tuple[str, int]:
        """Return the function and the case number at an index of the job."""
        number, case = divmod(place, self.stop - self.first)
        return self.functions[number], self.first + case


@dataclasses.dataclass
class Report:
    """The results for a function.

    Attributes:
        function: The function.
        total: The number of its cases.
        done: The number of cases that were run.
        violations: The violations, in order.
    """

    function: str
    total: int
    done: int = 0
    violations: list[Violation] = dataclasses.field(default_factory=list)


def run_job(
    job: Job, implementation: Implementation, hang_seconds: float, is_over: Callable[[], bool]
) -> list[Report]:
    """Run all cases of a job, in a new worker after each one that dies.

    Args:
        job: The cases.
        implementation: The implementation under test.
        hang_seconds: How long a case may take.
        is_over: Whether to stop early.

    Returns:
        A report for each function.
    """
    reports = {name: Report(name, job.stop - job.first) for name in job.functions}
    deaths, place = Counter[str](), 0
    while place < len(job):
        end, died = _follow(job, place, implementation, reports, hang_seconds, is_over)
        for done in range(place, end):
            reports[job[done][0]].done += 1
        place = end
        if died is not None:
            if len(job) > 1 and not deaths[died.function]:
                died = _again(died, implementation, hang_seconds, is_over)
            report = reports[died.function]
            report.violations.append(died)
            report.done += 1
            place += 1
            deaths[died.function] += 1
            while deaths[died.function] >= MAX_DEATHS and place % report.total:
                place += 1
        elif is_over():
            break
    return list(reports.values())


def _again(
    died: Violation,
    implementation: Implementation,
    hang_seconds: float,
    is_over: Callable[[], bool],
) -> Violation:
    """Run the case that killed a worker again, alone, to record its call and to confirm it."""
    job = Job((died.function,), died.seed, died.case, died.case + 1)
    reports = {died.function: Report(died.function, 1)}
    _, alone = _follow(job, 0, implementation, reports, hang_seconds, is_over)
    if alone is None:
        note = "not when it runs alone: --replay finds nothing"
        return dataclasses.replace(died, detail=f"{note}\n{died.detail}")
    return alone


def _follow(
    job: Job,
    place: int,
    implementation: Implementation,
    reports: dict[str, Report],
    hang_seconds: float,
    is_over: Callable[[], bool],
) -> tuple[int, Violation | None]:
    """Run a job from an index on in a forked process, and add its violations to the reports.

    Returns:
        The index at which it ended: after the last case, or of the case that killed it; and the
        violation of that case, None if it did not die.
    """
    context = multiprocessing.get_context("fork")
    how, since = None, time.monotonic()
    with tempfile.TemporaryFile() as stacks:
        with started(context, _work, job, place, implementation, stacks) as (process, connection):
            while True:
                if connection.poll(0.5):
                    try:
                        message = connection.recv()
                    except (EOFError, OSError):
                        break
                    if isinstance(message, Violation):
                        reports[message.function].violations.append(message)
                    else:
                        place, since = message, time.monotonic()
                elif time.monotonic() - since > hang_seconds:
                    how = "hangs"
                    os.kill(process.pid or 0, signal.SIGUSR1)  # writes its stacks
                    time.sleep(0.3)
                    process.kill()
                    break
                if is_over():
                    process.kill()
                    break
        code = process.exitcode or 0
        if how is None and (code == 0 or is_over()):
            return place, None
        if how is None:
            how = (
                f"died of signal {signal.Signals(-code).name}"
                if code < 0
                else f"died of exit {code}"
            )
        place = min(place, len(job) - 1)  # it may also die after the last case
        stacks.seek(0)
        return place, _death(job, place, how, stacks.read().decode(errors="replace"))


def _death(job: Job, place: int, how: str, dump: str) -> Violation:
    """Return the violation of a case that killed its process.

    Args:
        job: The job.
        place: The index of the case.
        how: How the process died, in a few words.
        dump: The output of the process: calls, stacks, and a traceback.
    """
    calls = [line[len(CALLING) :] for line in dump.splitlines() if line.startswith(CALLING)]
    frames = re.findall(r'File "[^"]*", line \d+.*', dump)
    detail = "\n    ".join(frames[:8]) or dump[-1500:]
    if how.startswith("died of exit"):
        detail = dump[dump.find("Traceback") :][-3000:]
    function, case = job[place]
    call = calls[-1] if calls else ""
    return Violation(function, job.seed, case, how, innermost_dumped(dump), detail, call)


def _work(
    job: Job,
    place: int,
    implementation: Implementation,
    stacks: IO[bytes],
    connection: Connection,
) -> None:
    """Run the cases in this process; send the index of each, then its violations."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        if len(job) == 1:
            _report_calls(stacks)
        poison_numpy()
        gc.callbacks.clear()  # Hypothesis' callback would swallow exceptions of signal handlers
        limit_memory()
        prober: Prober | None = None
        for at in range(place, len(job)):
            function, case = job[at]
            connection.send(at)
            if prober is None or prober.name != function:
                prober = Prober(function, implementation, job.seed)
            for violation in prober.run(case):
                connection.send(violation)
        connection.send(len(job))
        status = 0
    except BaseException:  # noqa: BLE001  # the worker reports it, and ends
        stacks.write(traceback.format_exc().encode())
        stacks.flush()
    finally:
        os._exit(status)


def _report_calls(stacks: IO[bytes]) -> None:
    """Write every call before it is made, so that a call that kills the process is known."""

    def report(call: Any) -> None:
        os.write(stacks.fileno(), f"{CALLING}{describe_call(call)}\n".encode())

    BEFORE_A_CALL.append(report)


def limit_memory() -> None:
    """Limit this process to its current address space plus `MEMORY_BYTES`."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * mmap.PAGESIZE + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
