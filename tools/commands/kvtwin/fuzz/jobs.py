"""The jobs that are sent to a worker, and the events that come back."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol


class WorkerContext(Protocol):
    """What a job may use in the worker that runs it."""

    def note_input(self, data: bytes) -> None:
        """Write down the input that runs next, in memory that survives a crash of the worker."""

    def report(self, message: object) -> None:
        """Send a message to the coordinator at once; it must be picklable."""

    def is_over(self) -> bool:
        """Return whether the job should end soon: the time is over, or the run is stopped."""


class Job(Protocol):
    """A piece of work, of some seconds. It must be picklable."""

    @property
    def name(self) -> str:
        """What the display and the report call it."""

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on a GPU."""

    @property
    def patience_seconds(self) -> float | None:
        """A case that takes longer hangs; None for the worker's own limit."""

    def run(self, worker: WorkerContext) -> Any:
        """Do the work in a worker process, and return a picklable result."""


@dataclasses.dataclass(frozen=True)
class Message:
    """What a running job reported.

    Attributes:
        job: The job.
        content: What it passed to `WorkerContext.report`.
    """

    job: Job
    content: Any


@dataclasses.dataclass(frozen=True)
class Finished:
    """A job that ended by itself.

    Attributes:
        job: The job.
        result: What `Job.run` returned.
        rss_bytes: The resident memory of the worker afterwards.
        peak_bytes: The most that the worker had.
    """

    job: Job
    result: Any
    rss_bytes: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """A job whose worker died, hung, or took too much memory.

    Attributes:
        job: The job.
        reason: `signal SIGSEGV`, `exit 3`, `hang`, `memory`, `stopped` (the run ended), `node` (the
            machine is gone), or `error` (the job itself raised).
        input: What the job noted last; empty if it noted nothing.
        detail: The stack of the worker, as far as it is known.
        worker: Which worker it was.
    """

    job: Job
    reason: str
    input: bytes = b""
    detail: str = ""
    worker: str = ""


Event = Message | Finished | Lost


class Pool(Protocol):
    """Workers that run jobs: local processes, or those of a Ray cluster."""

    @property
    def size(self) -> int:
        """The number of workers now."""

    def submit(self, job: Job) -> None:
        """Run a job as soon as a worker is free."""

    def events(self, timeout: float) -> list[Event]:
        """Return what happened since the last call; wait up to `timeout` seconds for the first."""

    def stop(self) -> None:
        """Ask all running jobs to end: `WorkerContext.is_over` is true from now on."""

    def close(self) -> None:
        """End all workers."""
