"""Run an exhaustive test: compare all cases that are left, on the workers of a pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvtwin.fuzz.exhaustive.jobs import CaseFailure, crash_of
from kvtwin.fuzz.exhaustive.progress import Progress
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
    show: Callable[[str], None] = lambda _: None,
) -> None:
    """Compare all cases that are left, until they are done or the time is over.

    Args:
        progress: The progress so far, updated and written to `folder` during the run.
        pool: The workers. They are requested to stop, and not closed.
        folder: The folder of the run.
        is_over: Whether to stop.
        show: Prints a failure, as a line.

    Raises:
        RuntimeError: The comparison itself failed, or too many workers were lost.
    """
    exhaustion, written = _JobQueue(progress, show), time.monotonic()
    try:
        while (exhaustion.left or exhaustion.running) and not is_over():
            while exhaustion.left and exhaustion.running <= pool.size:
                pool.submit(exhaustion.left.popleft())
                exhaustion.running += 1
            exhaustion.handle(pool.events(0.2))
            if time.monotonic() - written > WRITE_SECONDS:
                progress.write(folder)
                written = time.monotonic()
        pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while exhaustion.running and time.monotonic() < until:
            exhaustion.handle(pool.events(0.2))
    finally:
        progress.write(folder)


class _JobQueue:
    """The jobs of an exhaustive run, and the handling of their events.

    Args:
        progress: The progress so far, which is updated.
        show: Prints a failure, as a line.

    Attributes:
        left: The jobs to be submitted.
        running: The number of jobs that were submitted and have not ended.
    """

    def __init__(self, progress: Progress, show: Callable[[str], None]) -> None:
        self.left, self.running = deque(progress.jobs()), 0
        self._progress, self._show = progress, show
        self._num_lost = 0

    def handle(self, events: list[Event]) -> None:
        """Record the failures that jobs reported, and how jobs ended.

        Raises:
            RuntimeError: The comparison itself failed, or too many workers were lost.
        """
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
                raise RuntimeError(f"{job.name} failed: {event.detail}")
            else:
                self._num_lost += 1
                if self._num_lost > MAX_LOST:
                    message = f"{self._num_lost} workers were lost, the last by {event.reason}"
                    raise RuntimeError(message)
                failure = crash_of(job, event.reason, event.input)
                self._add_failure(failure)
                self.left.extendleft(self._progress.add_lost(job, failure))

    def _add_failure(self, failure: CaseFailure) -> None:
        if self._progress.add_failure(failure):
            self._show(failure.text)
