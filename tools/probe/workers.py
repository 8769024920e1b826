"""Runs cases in processes, and reports which case crashed, hung or ran out of memory."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

from tools.probe.calling import BEFORE_A_CALL, poison_numpy
from tools.probe.case import describe_call
from tools.probe.prober import Prober
from tools.probe.violation import Violation, innermost_dumped

HANG_SECONDS: Final = 20.0
"""A case that takes longer, by the clock, hangs; a call has 2 s of processor time."""

MEMORY_BYTES: Final = 1 << 30
"""Address space that a worker may take beyond what it begins with."""

CALLING: Final = "calling "
"""What a line begins with that says what is called next."""

MOST_DEATHS: Final = 12
"""Workers of one function that may die before the rest of its cases is left out."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Cases of one function.

    Attributes:
        function: the function.
        seed: of the run.
        first: the first case.
        stop: the one behind the last.
    """

    function: str
    seed: int
    first: int
    stop: int


@dataclasses.dataclass
class Report:
    """What came of a job.

    Attributes:
        job: the job.
        done: how many cases were run.
        violations: what they found, in order.
        counts: how many cases of each kind were run, by the last worker.
        seconds: how long it took.
    """

    job: Job
    done: int = 0
    violations: list[Violation] = dataclasses.field(default_factory=list)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class _Progress:
    """The number of the case that is running and when it began, in memory of both processes."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, case: int) -> None:
        self._map[:16] = struct.pack("qd", case, time.monotonic())

    def read(self) -> tuple[int, float]:
        case, since = struct.unpack("qd", self._map[:16])
        return int(case), float(since)


def run_job(
    job: Job,
    implementation: ModuleType,
    hang_seconds: float,
    is_over: Callable[[], bool],
) -> Report:
    """Run all cases of a job, in as many workers one after another as it takes.

    Args:
        job: The cases.
        implementation: What is probed.
        hang_seconds: How long a case may take.
        is_over: Tells whether to stop early.
    """
    report, first, deaths = Report(job), job.first, 0
    start = time.monotonic()
    while first < job.stop and deaths < MOST_DEATHS:
        worker = _Worker(dataclasses.replace(job, first=first), implementation)
        died = worker.follow(report, hang_seconds, is_over)
        report.done += worker.cases_done
        first += worker.cases_done
        if died is not None:
            if job.stop > job.first + 1:
                died = _again(died, implementation, hang_seconds, is_over)
            report.violations.append(died)
            deaths += 1
            first += 1
            report.done += 1
        elif is_over():
            break
    report.seconds = time.monotonic() - start
    return report


def _again(
    died: Violation, implementation: ModuleType, hang_seconds: float, is_over: Callable[[], bool]
) -> Violation:
    """Run the case that a worker died of alone, to learn its call, and whether it dies again."""
    job = Job(died.function, died.seed, died.case, died.case + 1)
    alone = _Worker(job, implementation).follow(Report(job), hang_seconds, is_over)
    if alone is None:
        note = "not when it runs alone: --replay finds nothing"
        return dataclasses.replace(died, detail=f"{note}\n{died.detail}")
    return alone


class _Worker:
    """A forked process, and what it has written so far."""

    def __init__(self, job: Job, implementation: ModuleType) -> None:
        self.job, self.progress = job, _Progress()
        self.progress.write(job.first - 1)
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in follow
        self._pipe, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._pipe)
            _work(job, implementation, self.progress, theirs, self._stacks)
        os.close(theirs)
        self._text = b""
        self.cases_done = 0

    def follow(
        self, report: Report, hang_seconds: float, is_over: Callable[[], bool]
    ) -> Violation | None:
        """Read what the worker finds until it ends; return how it died, None if it did not."""
        is_late = False
        while True:
            ready, _, _ = select.select([self._pipe], [], [], 0.5)
            if ready:
                read = os.read(self._pipe, 1 << 16)
                if not read:
                    break
                self._take(read, report)
            case, since = self.progress.read()
            if time.monotonic() - since > hang_seconds and case >= self.job.first:
                return self._hung(case)
            if is_over():
                is_late = True
                os.kill(self.process, signal.SIGKILL)
                break
        _, status = os.waitpid(self.process, 0)
        os.close(self._pipe)
        case, _ = self.progress.read()
        self.cases_done = max(case - self.job.first, 0) + (status == 0)
        if status == 0 or is_late:
            return None
        is_killed = os.WIFSIGNALED(status)
        how = f"signal {signal.Signals(status & 0x7F).name}" if is_killed else f"exit {status}"
        return self._death(case, f"died of {how}")

    def _hung(self, case: int) -> Violation:
        os.kill(self.process, signal.SIGUSR1)  # writes its stacks
        time.sleep(0.3)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._pipe)
        self.cases_done = case - self.job.first
        return self._death(case, "hangs")

    def _death(self, case: int, how: str) -> Violation:
        self._stacks.seek(0)
        dump = self._stacks.read().decode(errors="replace")
        self._stacks.close()
        calls = [line[len(CALLING) :] for line in dump.splitlines() if line.startswith(CALLING)]
        frames = re.findall(r'File "[^"]*", line \d+.*', dump)
        detail = "\n    ".join(frames[:8]) or dump[-1500:]
        if how.startswith("died of exit"):
            detail = dump[dump.find("Traceback") :][-3000:]
        call = calls[-1] if calls else ""
        return Violation(
            self.job.function, self.job.seed, case, how, innermost_dumped(dump), detail, call
        )

    def _take(self, read: bytes, report: Report) -> None:
        *lines, self._text = (self._text + read).split(b"\n")
        for line in lines:
            found = json.loads(line)
            if "counts" in found:
                report.counts = found["counts"]
            else:
                report.violations.append(Violation(**found))


def _work(
    job: Job, implementation: ModuleType, progress: _Progress, pipe: int, stacks: IO[bytes]
) -> None:
    """Run the cases in this process, and end it."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        if job.stop == job.first + 1:
            _report_calls(stacks)
        for line in findings(job, implementation, progress.write):
            os.write(pipe, json.dumps(line).encode() + b"\n")
        status = 0
    except BaseException:  # noqa: BLE001  # a worker says what ended it, and ends
        stacks.write(traceback.format_exc().encode())
        stacks.flush()
    finally:
        os._exit(status)


def _report_calls(stacks: IO[bytes]) -> None:
    """Write every call before it is made, so that it is known if it ends the process."""

    def report(call: Any) -> None:
        os.write(stacks.fileno(), f"{CALLING}{describe_call(call)}\n".encode())

    BEFORE_A_CALL.append(report)


def findings(
    job: Job, implementation: ModuleType, begin: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """Yield the violations of a job's cases, then how many cases of each kind there were."""
    prober = Prober(job.function, implementation, job.seed)
    poison_numpy()
    gc.callbacks.clear()  # Hypothesis has one, which a signal would end in
    limit_memory()
    for number in range(job.first, job.stop):
        begin(number)
        for violation in prober.run(number):
            yield dataclasses.asdict(violation)
    yield {"counts": prober.counts}


def limit_memory() -> None:
    """Let this process take no more address space than it has now, and some."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * mmap.PAGESIZE + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
