"""Run cases in processes, and report which case crashed, hung or ran out of memory."""

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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from conformance.implementations import Implementation
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

MAX_DEATHS: Final = 5
"""Workers of one function that may die before the rest of its cases is left out."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Cases of some functions, for one worker after another.

    Attributes:
        functions: The functions.
        seed: Of the run.
        first: The first case of each.
        stop: The one after the last.
    """

    functions: tuple[str, ...]
    seed: int
    first: int
    stop: int

    def __len__(self) -> int:
        return len(self.functions) * (self.stop - self.first)

    def __getitem__(self, place: int) -> tuple[str, int]:
        """Return the function and the number of the case at a place of the job."""
        number, case = divmod(place, self.stop - self.first)
        return self.functions[number], self.first + case


@dataclasses.dataclass
class Report:
    """What came of the cases of a function.

    Attributes:
        function: The function.
        total: How many cases were to be run.
        done: How many were run.
        violations: What they found, in order.
    """

    function: str
    total: int
    done: int = 0
    violations: list[Violation] = dataclasses.field(default_factory=list)


class _Progress:
    """The place of the case that is running, and when it began, in memory of both processes."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, place: int) -> None:
        self._map[:16] = struct.pack("qd", place, time.monotonic())

    def read(self) -> tuple[int, float]:
        place, since = struct.unpack("qd", self._map[:16])
        return int(place), float(since)


def run_job(
    job: Job, implementation: Implementation, hang_seconds: float, is_over: Callable[[], bool]
) -> list[Report]:
    """Run all cases of a job, in as many workers one after another as it takes.

    Args:
        job: The cases.
        implementation: What is probed.
        hang_seconds: How long a case may take.
        is_over: Whether to stop early.

    Returns:
        A report for each function.
    """
    reports = {name: Report(name, job.stop - job.first) for name in job.functions}
    deaths, place = Counter[str](), 0
    while place < len(job):
        worker = _Worker(job, place, implementation)
        died = worker.follow(reports, hang_seconds, is_over)
        for done in range(place, worker.place):
            reports[job[done][0]].done += 1
        place = worker.place
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
    """Run the case that a worker died of alone, to learn its call, and whether it dies again."""
    job = Job((died.function,), died.seed, died.case, died.case + 1)
    reports = {died.function: Report(died.function, 1)}
    alone = _Worker(job, 0, implementation).follow(reports, hang_seconds, is_over)
    if alone is None:
        note = "not when it runs alone: --replay finds nothing"
        return dataclasses.replace(died, detail=f"{note}\n{died.detail}")
    return alone


class _Worker:
    """A forked process that runs a job from a place on.

    Attributes:
        place: Where it ended: after the last case, or at the one of which it died.
    """

    def __init__(self, job: Job, place: int, implementation: Implementation) -> None:
        self.job, self.place, self._progress = job, place, _Progress()
        self._progress.write(place)
        self._stacks: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in follow
        self._pipe, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._pipe)
            _work(job, place, implementation, self._progress, theirs, self._stacks)
        os.close(theirs)
        self._text = b""

    def follow(
        self, reports: dict[str, Report], hang_seconds: float, is_over: Callable[[], bool]
    ) -> Violation | None:
        """Read what the worker finds until it ends; return how it died, None if it did not."""
        how = None
        while True:
            ready, _, _ = select.select([self._pipe], [], [], 0.5)
            if ready:
                read = os.read(self._pipe, 1 << 16)
                if not read:
                    break
                self._take(read, reports)
            if time.monotonic() - self._progress.read()[1] > hang_seconds:
                how = "hangs"
                os.kill(self.process, signal.SIGUSR1)  # writes its stacks
                time.sleep(0.3)
            elif not is_over():
                continue
            os.kill(self.process, signal.SIGKILL)
            break
        _, status = os.waitpid(self.process, 0)
        os.close(self._pipe)
        self.place = self._progress.read()[0]
        if how is None and (status == 0 or is_over()):
            return None
        self.place = min(self.place, len(self.job) - 1)  # what the last case left may end it, too
        if how is None and os.WIFSIGNALED(status):
            how = f"died of signal {signal.Signals(status & 0x7F).name}"
        return self._death(how or f"died of exit {status}")

    def _death(self, how: str) -> Violation:
        self._stacks.seek(0)
        dump = self._stacks.read().decode(errors="replace")
        self._stacks.close()
        calls = [line[len(CALLING) :] for line in dump.splitlines() if line.startswith(CALLING)]
        frames = re.findall(r'File "[^"]*", line \d+.*', dump)
        detail = "\n    ".join(frames[:8]) or dump[-1500:]
        if how.startswith("died of exit"):
            detail = dump[dump.find("Traceback") :][-3000:]
        call = calls[-1] if calls else ""
        function, case = self.job[self.place]
        return Violation(function, self.job.seed, case, how, innermost_dumped(dump), detail, call)

    def _take(self, read: bytes, reports: dict[str, Report]) -> None:
        *lines, self._text = (self._text + read).split(b"\n")
        for line in lines:
            found = Violation(**json.loads(line))
            reports[found.function].violations.append(found)


def _work(
    job: Job,
    place: int,
    implementation: Implementation,
    progress: _Progress,
    pipe: int,
    stacks: IO[bytes],
) -> None:
    """Run the cases in this process, and end it."""
    status = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    try:
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        if len(job) == 1:
            _report_calls(stacks)
        poison_numpy()
        gc.callbacks.clear()  # Hypothesis has one, in which a signal would end
        limit_memory()
        prober: Prober | None = None
        for at in range(place, len(job)):
            function, case = job[at]
            progress.write(at)
            if prober is None or prober.name != function:
                prober = Prober(function, implementation, job.seed)
            for violation in prober.run(case):
                line = json.dumps(dataclasses.asdict(violation))
                os.write(pipe, f"{line}\n".encode())
        progress.write(len(job))
        status = 0
    except BaseException:  # noqa: BLE001  # a worker reports what ended it, and ends
        stacks.write(traceback.format_exc().encode())
        stacks.flush()
    finally:
        os._exit(status)


def _report_calls(stacks: IO[bytes]) -> None:
    """Write every call before it is made, so that it is known if it ends the process."""

    def report(call: Any) -> None:
        os.write(stacks.fileno(), f"{CALLING}{describe_call(call)}\n".encode())

    BEFORE_A_CALL.append(report)


def limit_memory() -> None:
    """Let this process take no more address space than it has now, and some."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * mmap.PAGESIZE + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
