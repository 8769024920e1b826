"""Jobs for the tests of local workers."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import ClassVar, Final

from conformance.execution.gpu_context import ContextLostError, UsedGpuError
from kvtwin.fuzz.workers.jobs import WorkerContext
from tests.tools.fuzz.ray_jobs import NamedJob

LEAKED: Final[list[bytes]] = []
"""The memory that `KeepingJob` leaks."""

RUNS: Final[list[str]] = []
"""The jobs that `ForkingJob` ran in this process."""


class PidJob(NamedJob):
    """Return the process id of the worker."""

    def run(self, worker: WorkerContext) -> int:
        """Return it."""
        worker.note_input(b"pid")
        return os.getpid()


class HangingJob(NamedJob):
    """Note some inputs, and hang in the last."""

    def run(self, worker: WorkerContext) -> None:
        """Hang."""
        for text in ("first", "second", "hangs"):
            worker.note_input(text.encode())
        while True:
            time.sleep(1)


@dataclasses.dataclass(frozen=True)
class SlowJob(NamedJob):
    """Note an input every tenth of a second.

    Attributes:
        seconds: How long.
    """

    seconds: float

    def run(self, worker: WorkerContext) -> bool:
        """Return whether it was requested to end."""
        deadline = time.monotonic() + self.seconds
        worker.report("begun")
        while time.monotonic() < deadline and not worker.is_over():
            worker.note_input(b"an input")
            time.sleep(0.1)
        return worker.is_over()


@dataclasses.dataclass(frozen=True)
class KeepingJob(NamedJob):
    """Leak memory.

    Attributes:
        num_bytes: How much.
        seconds: How long the job continues afterwards.
    """

    num_bytes: int
    seconds: float = 0.0

    def run(self, worker: WorkerContext) -> int:
        """Return the process id."""
        worker.note_input(b"takes memory")
        LEAKED.append(b"x" * self.num_bytes)
        time.sleep(self.seconds)
        return os.getpid()


class ContextLosingJob(NamedJob):
    """Lose the GPU context."""

    def run(self, worker: WorkerContext) -> None:
        """Raise the error of a case that lost the context."""
        worker.note_input(b"exits")
        raise ContextLostError("planted")


@dataclasses.dataclass(frozen=True)
class ForkingJob(NamedJob):
    """Raise `UsedGpuError`, as a job that forks does in a process that has used a GPU.

    Attributes:
        succeeds: Whether the job succeeds in a new process.
    """

    succeeds: bool
    needs_gpu: ClassVar[bool] = True

    def run(self, worker: WorkerContext) -> int:
        """Return the process id if this is the process's first such job and it succeeds."""
        worker.note_input(b"forks")
        if RUNS or not self.succeeds:
            raise UsedGpuError
        RUNS.append(self.name)
        return os.getpid()


@dataclasses.dataclass(frozen=True)
class ExitingJob(NamedJob):
    """End the process.

    Attributes:
        status: The exit status.
    """

    status: int

    def run(self, worker: WorkerContext) -> None:
        """End it."""
        worker.note_input(b"exits")
        os._exit(self.status)
