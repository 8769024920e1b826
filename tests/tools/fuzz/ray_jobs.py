"""Jobs for the tests of `ray_pool`; the nodes import this module."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

from kvtwin.fuzz.workers.jobs import WorkerContext


@dataclasses.dataclass(frozen=True)
class NamedJob:
    """A job with its class's name and the worker's hang timeout that needs no GPU."""

    needs_gpu: ClassVar[bool] = False

    @property
    def hang_timeout_seconds(self) -> float | None:
        """The pause that counts as a hang; None for the worker's default."""
        return None

    @property
    def name(self) -> str:
        """The job's name."""
        return type(self).__name__


@dataclasses.dataclass(frozen=True)
class CountingJob(NamedJob):
    """Report numbers.

    Attributes:
        number: The number of the job.
        messages: How many numbers the job reports.
        seconds: The pause after each number.
        hang_timeout_seconds: The pause that counts as a hang; None for the worker's default.
    """

    number: int
    messages: int = 3
    seconds: float = 0.1
    hang_timeout_seconds: float | None = None

    @property
    def name(self) -> str:
        """The job's name."""
        return f"counting {self.number}"

    def run(self, worker: WorkerContext) -> int:
        """Report the numbers with the node's name; return the job's own number."""
        for index in range(self.messages):
            worker.note_input(f"{self.number} {index}".encode())
            worker.report((self.number, index, os.environ.get("KVTWIN_NODE")))
            time.sleep(self.seconds)
            if worker.is_over():
                break
        return self.number


@dataclasses.dataclass(frozen=True)
class LargeJob(NamedJob):
    """Report a message that is too large for Ray to send with a reply.

    Attributes:
        size: The size of the message in bytes.
    """

    size: int

    def run(self, worker: WorkerContext) -> bytes:
        """Report the message; return another one."""
        worker.report(b"a" * self.size)
        return b"b" * self.size


class CrashingJob(NamedJob):
    """Crash with SIGSEGV."""

    def run(self, worker: WorkerContext) -> None:
        """Note an input and crash."""
        worker.note_input(b"the input")
        os.kill(os.getpid(), signal.SIGSEGV)


class RaisingJob(NamedJob):
    """Raise an exception."""

    def run(self, worker: WorkerContext) -> None:
        """Raise it."""
        worker.note_input(b"raises")
        raise ZeroDivisionError("planted")


@dataclasses.dataclass(frozen=True)
class ReadingJob(NamedJob):
    """Return the text of a file.

    Attributes:
        path: Its path on the coordinator.
    """

    path: str

    def run(self, worker: WorkerContext) -> tuple[str, str]:
        """Report the length of the path on this node; return the path and the text."""
        worker.report(len(self.path))
        return self.path, Path(self.path).read_text(encoding="utf-8")


class GpuJob(NamedJob):
    """Return the GPUs that the job may use."""

    needs_gpu: ClassVar[bool] = True

    def run(self, worker: WorkerContext) -> str | None:
        """Return `CUDA_VISIBLE_DEVICES`."""
        worker.note_input(b"")
        return os.environ.get("CUDA_VISIBLE_DEVICES")
