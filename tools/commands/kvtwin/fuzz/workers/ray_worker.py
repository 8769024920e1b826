"""A worker on a node of a Ray cluster: a Ray task with a child process that runs the jobs.

The task itself runs no job and imports nothing of the harness, so a crash ends only the child. It
exchanges jobs and events with the coordinator through a socket.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
from multiprocessing.connection import Client, Connection
from typing import Any, Final

from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Message, WorkerContext
from kvtwin.fuzz.workers.shipping import PathMap, dump, load
from kvtwin.fuzz.workers.worker import Limits, LocalWorker

STOP: Final = "stop"
CLOSE: Final = "close"
"""The messages of the coordinator that are not jobs."""


@dataclasses.dataclass(frozen=True)
class PickledJob:
    """A pickled job, whose modules the task need not import.

    Attributes:
        data: The job, as `shipping.dump` writes it.
        places: Where the coordinator's folders are on this node.
        hang_timeout_seconds: The `hang_timeout_seconds` of the job.
    """

    data: bytes
    places: PathMap
    hang_timeout_seconds: float | None
    name: str = "pickled"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> bytes:
        """Run the job; return its result, as `shipping.dump` writes it."""
        job: Job = load(self.data, self.places)
        return dump(job.run(_PicklingContext(worker, self.places)), self.places)


class _PicklingContext:
    """A `WorkerContext` that pickles messages before it reports them."""

    def __init__(self, worker: WorkerContext, places: PathMap) -> None:
        self._worker, self._places = worker, places
        self.note_input, self.is_over = worker.note_input, worker.is_over
        self.memory_bytes = worker.memory_bytes

    def report(self, message: object) -> None:
        self._worker.report(dump(message, self._places))


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """The configuration of a worker on a node.

    Attributes:
        key: Authenticates it to the coordinator.
        places: Folders of the coordinator.
        limits: The limits of its child process.
        preload: Modules that its child processes import once.
    """

    key: bytes
    places: PathMap
    limits: Limits
    preload: tuple[str, ...]


def run_worker(number: int, address: tuple[str, int], config: WorkerConfig, has_gpu: bool) -> None:
    """Run the jobs that the coordinator sends until it closes the connection.

    Args:
        number: The number of the worker.
        address: The address of the coordinator.
        config: The configuration of the worker.
        has_gpu: Whether it runs the jobs that need a GPU, or the others.
    """
    name = f"worker {number} on {socket.gethostname()}"
    places = config.places.on_node()
    worker = LocalWorker(name, config.limits, config.preload)
    jobs: queue.SimpleQueue[PickledJob | None] = queue.SimpleQueue()
    with Client(address, authkey=config.key) as pipe:
        pipe.send((name, has_gpu))
        threading.Thread(target=_receive, args=(pipe, worker, jobs, places), daemon=True).start()
        with contextlib.suppress(OSError):
            while (job := jobs.get()) is not None:
                for event in worker.run(job):
                    pipe.send_bytes(dump(wire_of(event), places))


def _receive(
    pipe: Connection,
    worker: LocalWorker,
    jobs: queue.SimpleQueue[PickledJob | None],
    places: PathMap,
) -> None:
    """Receive jobs, and the requests to stop and close: the body of a thread."""
    with contextlib.suppress(EOFError, OSError):
        while (received := pipe.recv()) != CLOSE:
            if received == STOP:
                worker.stop()
            else:
                data, hang_timeout_seconds = received
                jobs.put(PickledJob(data, places, hang_timeout_seconds))
    worker.close()
    jobs.put(None)


def wire_of(event: Event) -> tuple[Any, ...]:
    """Return an event as plain values without its job, which the coordinator has."""
    if isinstance(event, Message):
        return "message", event.content
    if isinstance(event, Finished):
        return "finished", event.result, event.rss_bytes, event.peak_bytes
    return "lost", event.reason, event.input, event.detail, event.worker
