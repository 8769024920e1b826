"""A pool of workers on this machine, each driven by a thread."""

from __future__ import annotations

import contextlib
import queue
import threading

from kvtwin.fuzz.workers.jobs import Event, Job, Lost
from kvtwin.fuzz.workers.worker import PRELOAD, Limits, LocalWorker


class LocalPool:
    """Worker processes on this machine; see `jobs.Pool`.

    Args:
        workers: The number of workers.
        limits: The limits of each.
        preload: Modules that their processes import once.

    Attributes:
        workers: The workers.
    """

    def __init__(self, workers: int, limits: Limits, preload: tuple[str, ...] = PRELOAD) -> None:
        self.workers = [LocalWorker(f"worker {n}", limits, preload) for n in range(workers)]
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._follow, args=(worker,), daemon=True)
            for worker in self.workers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.workers)

    @property
    def cluster_cpus(self) -> int:
        """0: there is no cluster."""
        return 0

    def submit(self, job: Job) -> None:
        """Run a job as soon as a worker is free."""
        self._jobs.put(job)

    def events(self, timeout: float) -> list[Event]:
        """Return what happened since the last call; wait up to `timeout` seconds for the first."""
        return take_events(self._events, timeout)

    def stop(self) -> None:
        """Signal all jobs to end."""
        for worker in self.workers:
            worker.stop()

    def close(self) -> None:
        """End all workers; running and waiting jobs are lost as `stopped`."""
        for worker in self.workers:
            worker.close()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _follow(self, worker: LocalWorker) -> None:
        """Run jobs in one worker: the body of a thread."""
        while (job := self._jobs.get()) is not None:
            try:
                for event in worker.run(job):
                    self._events.put(event)
            except Exception as error:  # noqa: BLE001  # a job must not be lost silently
                self._events.put(Lost(job, "error", detail=repr(error), worker=worker.name))


def take_events(events: queue.SimpleQueue[Event], timeout: float) -> list[Event]:
    """Return all events of a queue; wait up to `timeout` seconds for the first."""
    found: list[Event] = []
    with contextlib.suppress(queue.Empty):
        found.append(events.get(timeout=max(timeout, 0)))
        while True:
            found.append(events.get_nowait())
    return found
