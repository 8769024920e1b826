"""Jobs of the tests of `ray_pool`: they are imported on the nodes."""

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
    """A job that is called after its class, needs no GPU, and has no patience of its own."""

    needs_gpu: ClassVar[bool] = False

    @property
    def hang_timeout_seconds(self) -> float | None:
        """A longer pause is a hang; None for the worker's own limit."""
        return None

    @property
    def name(self) -> str:
        """What it is called."""
        return type(self).__name__


@dataclasses.dataclass(frozen=True)
class CountingJob(NamedJob):
    """Report numbers.

    Attributes:
        number: Which job it is.
        messages: How many numbers.
        seconds: The pause after each.
        hang_timeout_seconds: A longer pause is a hang; None for the worker's own limit.
    """

    number: int
    messages: int = 3
    seconds: float = 0.1
    hang_timeout_seconds: float | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return f"counting {self.number}"

    def run(self, worker: WorkerContext) -> int:
        """Report the numbers, and who runs it; return its own."""
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
        size: The number of its bytes.
    """

    size: int

    def run(self, worker: WorkerContext) -> bytes:
        """Report the message; return another one."""
        worker.report(b"a" * self.size)
        return b"b" * self.size


class CrashingJob(NamedJob):
    """Die of a segmentation fault."""

    def run(self, worker: WorkerContext) -> None:
        """Note an input and die."""
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
        """Return the path, as the coordinator has it, and the text, with the path of the node."""
        worker.report(len(self.path))
        return self.path, Path(self.path).read_text(encoding="utf-8")


class GpuJob(NamedJob):
    """Return which GPUs it may use."""

    needs_gpu: ClassVar[bool] = True

    def run(self, worker: WorkerContext) -> str | None:
        """Return them as CUDA reads them."""
        worker.note_input(b"")
        return os.environ.get("CUDA_VISIBLE_DEVICES")
