"""The jobs that are sent to a worker, and the events that come back."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol


class WorkerContext(Protocol):
    """The interface of a worker to the job that it runs.

    Attributes:
        memory_bytes: How much resident memory a child of the worker may have; None for no limit.
            The worker's own memory is watched from outside.
    """

    memory_bytes: int | None

    def note_input(self, data: bytes) -> None:
        """Record the input that runs next, in memory that survives a crash of the worker."""

    def report(self, message: object) -> None:
        """Send a message to the coordinator at once; it must be picklable."""

    def is_over(self) -> bool:
        """Return whether the job should end soon: the time is over, or the run is stopped."""


class Job(Protocol):
    """A picklable unit of work for a worker, which takes some seconds."""

    @property
    def name(self) -> str:
        """The name in the display and the report."""

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on a GPU."""

    @property
    def hang_timeout_seconds(self) -> float | None:
        """A case that takes longer counts as hung; None for the worker's own limit."""

    def run(self, worker: WorkerContext) -> Any:
        """Do the work in a worker process, and return a picklable result."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A message that a running job reported.

    Attributes:
        job: The job.
        content: The argument of `WorkerContext.report`.
    """

    job: Job
    content: Any


@dataclasses.dataclass(frozen=True)
class Finished:
    """A job that returned.

    Attributes:
        job: The job.
        result: The result of `Job.run`.
        rss_bytes: The resident memory of the worker afterwards.
        peak_bytes: The peak resident memory of the worker.
    """

    job: Job
    result: Any
    rss_bytes: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """A job that did not return: its worker died, hung, took too much memory or was stopped.

    Attributes:
        job: The job.
        reason: `signal SIGSEGV`, `exit 3`, `hang`, `memory`, `lost GPU context`, `a closed pipe`,
            `stopped` (the run ended), `node` (its node was lost), or `error` (the job raised).
        input: The last input that the job noted; empty if there is none.
        detail: The stack or the traceback of the worker, if known.
        worker: The name of the worker.
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

    @property
    def cluster_cpus(self) -> int:
        """The number of CPUs of the cluster; 0 if the workers are on this machine."""

    def submit(self, job: Job) -> None:
        """Run a job as soon as a worker is free."""

    def events(self, timeout: float) -> list[Event]:
        """Return what happened since the last call; wait up to `timeout` seconds for the first."""

    def stop(self) -> None:
        """Signal all jobs to end: `WorkerContext.is_over` is true from now on."""

    def close(self) -> None:
        """End all workers."""
