"""A worker on a node of a Ray cluster: an actor with a child process that runs the jobs.

The actor itself runs no job and imports nothing of the harness, so a crash ends only the child.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from typing import Any, Final

from tools.fuzz.jobs import Event, Finished, Job, Message, WorkerContext
from tools.fuzz.shipping import Places, dump, load
from tools.fuzz.worker import Limits, LocalWorker, Start

PIECE_BYTES: Final = 64 << 10
"""Ray sends objects of up to 100 KiB with its reply; larger ones stay on the node, and are lost
with it. So an event is sent in pieces."""


@dataclasses.dataclass(frozen=True)
class PickledJob:
    """A job that the actor need not import.

    Attributes:
        data: The job, as `shipping.dump` writes it.
        places: Where the coordinator's folders are on this node.
    """

    data: bytes
    places: Places
    name: str = "pickled"
    needs_gpu: bool = False

    def run(self, worker: WorkerContext) -> bytes:
        """Run the job; return its result, as `shipping.dump` writes it."""
        job: Job = load(self.data, self.places)
        return dump(job.run(_PicklingContext(worker, self.places)), self.places)


class _PicklingContext:
    """A `WorkerContext` that pickles what is reported."""

    def __init__(self, worker: WorkerContext, places: Places) -> None:
        self._worker, self._places = worker, places
        self.note_input, self.is_over = worker.note_input, worker.is_over

    def report(self, message: object) -> None:
        self._worker.report(dump(message, self._places))


class RayWorker:
    """The actor.

    Args:
        number: Of the worker.
        limits: What the child process may take.
        start: How it is started.
        places: Folders of the coordinator.
    """

    def __init__(self, number: int, limits: Limits, start: Start, places: Places) -> None:
        self._name = f"worker {number} on {socket.gethostname()}"
        self._worker = LocalWorker(self._name, limits, start)
        self._places = places.on_node()

    def describe(self) -> tuple[str, str]:
        """Return the id of the node and what the worker is called."""
        import ray  # noqa: PLC0415  # of the extra `ray`; only actors run this

        return ray.get_runtime_context().get_node_id(), self._name

    def run(self, data: bytes, is_stopped: bool) -> Iterator[tuple[bool, bytes]]:
        """Run a job.

        Args:
            data: The job, as `shipping.dump` writes it.
            is_stopped: Whether jobs should end soon.

        Yields:
            Its events, pickled, in pieces: whether a piece is the last of an event, and the piece.
        """
        if is_stopped:
            self._worker.stop()
        for event in self._worker.run(PickledJob(data, self._places)):
            whole = dump(wire_of(event), self._places)
            ends = range(PIECE_BYTES, len(whole) + PIECE_BYTES, PIECE_BYTES)
            for end in ends:
                yield end >= len(whole), whole[end - PIECE_BYTES : end]

    def stop(self) -> None:
        """Let `WorkerContext.is_over` be true from now on."""
        self._worker.stop()

    def close(self) -> None:
        """End the child; a job that is running is lost as `stopped`."""
        self._worker.close()


def wire_of(event: Event) -> tuple[Any, ...]:
    """Return an event as plain values without its job, which the coordinator has."""
    if isinstance(event, Message):
        return "message", event.content
    if isinstance(event, Finished):
        return "finished", event.result, event.rss_bytes, event.peak_bytes
    return "lost", event.reason, event.input, event.detail, event.worker
