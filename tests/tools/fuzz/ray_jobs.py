"""Jobs of the tests of `ray_pool`: they are imported on the nodes."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

from tools.fuzz.jobs import WorkerContext


@dataclasses.dataclass(frozen=True)
class CountingJob:
    """Report numbers.

    Attributes:
        number: Which job it is.
        messages: How many numbers.
        seconds: The pause after each.
    """

    number: int
    messages: int = 3
    seconds: float = 0.1
    needs_gpu: bool = False

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
class LargeJob:
    """Report a message that is too large for Ray to send with a reply.

    Attributes:
        size: The number of its bytes.
    """

    size: int
    name: str = "large"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> bytes:
        """Report the message; return another one."""
        worker.report(b"a" * self.size)
        return b"b" * self.size


@dataclasses.dataclass(frozen=True)
class CrashingJob:
    """Die of a segmentation fault."""

    name: str = "crashing"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> None:
        """Note an input and die."""
        worker.note_input(b"the input")
        os.kill(os.getpid(), signal.SIGSEGV)


@dataclasses.dataclass(frozen=True)
class RaisingJob:
    """Raise an exception."""

    name: str = "raising"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> None:
        """Raise it."""
        worker.note_input(b"raises")
        raise ZeroDivisionError("planted")


@dataclasses.dataclass(frozen=True)
class ReadingJob:
    """Return the text of a file.

    Attributes:
        path: Its path on the coordinator.
    """

    path: str
    name: str = "reading"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> tuple[str, str]:
        """Return the path, as the coordinator has it, and the text, with the path of the node."""
        worker.report(len(self.path))
        return self.path, Path(self.path).read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class GpuJob:
    """Return which GPUs it may use."""

    name: str = "gpu"
    needs_gpu: bool = True

    def run(self, worker: WorkerContext) -> str | None:
        """Return them as CUDA reads them."""
        worker.note_input(b"")
        return os.environ.get("CUDA_VISIBLE_DEVICES")
