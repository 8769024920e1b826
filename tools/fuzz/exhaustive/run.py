"""An exhaustive run: everything that is not done yet, on the workers of a pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.fuzz.exhaustive.jobs import CaseFailure, ExhaustiveJob, crash_of
from tools.fuzz.exhaustive.progress import Progress
from tools.fuzz.jobs import Event, Finished, Lost, Message, Pool

WRITE_SECONDS: Final = 5.0
"""How often what is done is written."""

DRAIN_SECONDS: Final = 10.0
"""What running jobs may take to end after the time is over."""

MAX_LOST: Final = 50
"""After so many lost workers a run ends."""


class Exhaustion:
    """Hands out the jobs of an exhaustive run, and takes what comes of them.

    Args:
        progress: What is done, which is brought up to date.
        show: Shows a line: a failure.

    Attributes:
        progress: What is done.
        running: The jobs that were handed out and have not ended.
    """

    def __init__(self, progress: Progress, show: Callable[[str], None]) -> None:
        self.progress = progress
        self.running = 0
        self._show = show
        self._left = deque(progress.jobs())
        self._num_lost = 0

    @property
    def has_more(self) -> bool:
        """Whether a job is left to be handed out."""
        return bool(self._left)

    def next_job(self) -> ExhaustiveJob:
        """Return the next job, which now runs.

        Raises:
            IndexError: None is left.
        """
        job = self._left.popleft()
        self.running += 1
        return job

    def handle(self, event: Event) -> None:
        """Take what a job reported, or how it ended.

        Args:
            event: An event of a job of this run.

        Raises:
            RuntimeError: The comparison itself failed, or too many workers were lost.
        """
        if isinstance(event, Message):
            if isinstance(event.content, CaseFailure):
                self._note(event.content)
            return
        self.running -= 1
        if isinstance(event, Finished):
            self._left.extend(self.progress.add(_own(event), event.result))
        else:
            self._handle_lost(event)

    def _handle_lost(self, event: Lost) -> None:
        job = _own(event)
        if event.reason in {"stopped", "node"}:
            self._left.append(job)
            return
        if event.reason == "error":
            raise RuntimeError(f"{job.name} failed: {event.detail}")
        self._num_lost += 1
        if self._num_lost > MAX_LOST:
            raise RuntimeError(f"{self._num_lost} workers were lost, the last by {event.reason}")
        failure = crash_of(job, event.reason, event.input)
        self._note(failure)
        self._left.extendleft(self.progress.add_lost(job, failure))

    def _note(self, failure: CaseFailure) -> None:
        if self.progress.add_failure(failure):
            self._show(failure_line(failure))


def _own(event: Finished | Lost) -> ExhaustiveJob:
    """Return an event's job.

    Raises:
        TypeError: The job is none of an exhaustive run.
    """
    if not isinstance(event.job, ExhaustiveJob):
        raise TypeError(f"{event.job.name} is not a job of an exhaustive run")
    return event.job


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
        progress: What is done, which is written to `folder` as the run goes on.
        pool: The workers. They are requested to stop, and not closed.
        folder: The folder of the run.
        is_over: Whether to stop.
        show: Shows a line: a failure.

    Raises:
        RuntimeError: The comparison itself failed, or too many workers were lost.
    """
    exhaustion, written = Exhaustion(progress, show), time.monotonic()
    try:
        while (exhaustion.has_more or exhaustion.running) and not is_over():
            while exhaustion.has_more and exhaustion.running <= pool.size:
                pool.submit(exhaustion.next_job())
            _take(exhaustion, pool)
            if time.monotonic() - written > WRITE_SECONDS:
                progress.write(folder)
                written = time.monotonic()
        pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while exhaustion.running and time.monotonic() < until:
            _take(exhaustion, pool)
    finally:
        progress.write(folder)


def _take(exhaustion: Exhaustion, pool: Pool) -> None:
    for event in pool.events(0.2):
        exhaustion.handle(event)


def failure_line(failure: CaseFailure) -> str:
    """Return a failure in a line."""
    return (
        f"FAILS: {failure.function} on {failure.target}, {failure.scope}:{failure.index}:"
        f" {failure.line}"
    )
