"""Run an exhaustive test: compare all cases that are left, on the workers of a pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvtwin.fuzz.exhaustive.jobs import CaseFailure, crash_of
from kvtwin.fuzz.exhaustive.progress import Progress
from kvtwin.fuzz.report.record import Error
from kvtwin.fuzz.workers.jobs import Event, Finished, Message, Pool

WRITE_SECONDS: Final = 5.0
"""How often the progress is written."""

DRAIN_SECONDS: Final = 10.0
"""How long to wait for running jobs after the time is over."""

MAX_LOST: Final = 50
"""The number of lost workers after which a run ends."""


def run(
    progress: Progress,
    pool: Pool,
    folder: Path,
    *,
    is_over: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
    show: Callable[[], None] = lambda: None,
) -> Error | None:
    """Compare all cases that are left, until they are done, the time is over, or an error occurs.

    Args:
        progress: The progress so far, updated and written to `folder` during the run.
        pool: The workers. They are requested to stop, and not closed.
        folder: The folder of the run.
        is_over: Whether to stop.
        note: Prints a failure or an error.
        show: Shows the progress; called several times a second.

    Returns:
        The error that ended the run early, if any: the comparison itself failed, or too many
        workers were lost.
    """
    queue, written = _JobQueue(progress, note), time.monotonic()
    try:
        while (queue.left or queue.running) and queue.error is None and not is_over():
            while queue.left and queue.running <= pool.size:
                pool.submit(queue.left.popleft())
                queue.running += 1
            queue.handle(pool.events(0.2))
            show()
            if time.monotonic() - written > WRITE_SECONDS:
                progress.write(folder)
                written = time.monotonic()
        pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while queue.running and time.monotonic() < until:
            queue.handle(pool.events(0.2))
    finally:
        progress.write(folder)
    return queue.error


class _JobQueue:
    """The jobs of an exhaustive run, and the handling of their events.

    Args:
        progress: The progress so far, which is updated.
        note: Prints a failure or an error.

    Attributes:
        left: The jobs to be submitted.
        running: The number of jobs that were submitted and have not ended.
        error: The first error, which ends the run.
    """

    def __init__(self, progress: Progress, note: Callable[[str], None]) -> None:
        self.left, self.running = deque(progress.jobs()), 0
        self.error: Error | None = None
        self._progress, self._note = progress, note
        self._num_lost = 0

    def handle(self, events: list[Event]) -> None:
        """Record the failures that jobs reported, and how jobs ended."""
        for event in events:
            job: Any = event.job
            if isinstance(event, Message):
                if isinstance(event.content, CaseFailure):
                    self._add_failure(event.content)
                continue
            self.running -= 1
            if isinstance(event, Finished):
                self.left.extendleft(self._progress.add(job, event.result))
            elif event.reason in {"stopped", "node"}:
                self.left.append(job)
            elif event.reason == "error":
                self._end(job.name, f"the comparison itself failed\n{event.detail}")
            else:
                failure = crash_of(job, event.reason, event.input)
                self._add_failure(failure)
                self.left.extendleft(self._progress.add_lost(job, failure))
                self._num_lost += 1
                if self._num_lost > MAX_LOST:
                    lost = f"{self._num_lost} workers were lost, the last by {event.reason}"
                    self._end(job.name, f"{lost}; the same command continues it")

    def _add_failure(self, failure: CaseFailure) -> None:
        if self._progress.add_failure(failure):
            self._note(failure.text)

    def _end(self, where: str, why: str) -> None:
        if self.error is None:
            self.error = Error(where=where, message=f"The run ended early: {why}")
            self._note(f"{where}: {self.error.message}")
