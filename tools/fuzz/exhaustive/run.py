"""An exhaustive run: all that is left, on the workers of a pool."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.fuzz.exhaustive.jobs import CaseFailure, ExhaustiveJob, ExhaustiveResult
from tools.fuzz.exhaustive.progress import Progress
from tools.fuzz.jobs import Event, Finished, Message, Pool

WRITE_SECONDS: Final = 5.0
"""How often what is done is written."""

DRAIN_SECONDS: Final = 10.0
"""What running jobs may take to end after the time is over."""

MOST_LOST: Final = 50
"""After so many lost workers a run ends."""


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
        pool: The workers. They are asked to stop, and not closed.
        folder: The folder of the run.
        is_over: Whether to stop.
        show: Shows a line: a failure.

    Raises:
        RuntimeError: The comparison itself failed, or too many workers were lost.
    """
    left = deque(progress.jobs())
    running, lost, written = 0, 0, time.monotonic()

    def handle(event: Event) -> None:
        nonlocal running, lost
        if isinstance(event, Message):
            if isinstance(event.content, CaseFailure) and progress.add_failure(event.content):
                show(told(event.content))
            return
        running -= 1
        job = event.job
        assert isinstance(job, ExhaustiveJob)  # noqa: S101  # no other was submitted
        if isinstance(event, Finished):
            assert isinstance(event.result, ExhaustiveResult)  # noqa: S101  # see `ExhaustiveJob`
            left.extend(progress.add(job, event.result))
        elif event.reason in {"stopped", "node"}:
            left.append(job)
        elif event.reason == "error":
            raise RuntimeError(f"{job.name} failed: {event.detail}")
        else:
            lost += 1
            failure, others = progress.add_lost(job, event.reason, event.input)
            show(told(failure))
            left.extendleft(others)

    try:
        while (left or running) and not is_over():
            while left and running <= pool.size:
                pool.submit(left.popleft())
                running += 1
            for event in pool.events(0.2):
                handle(event)
            if lost > MOST_LOST:
                raise RuntimeError(f"{lost} workers were lost")
            if time.monotonic() - written > WRITE_SECONDS:
                progress.write(folder)
                written = time.monotonic()
        pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while running and time.monotonic() < until:
            for event in pool.events(0.2):
                handle(event)
    finally:
        progress.write(folder)


def told(failure: CaseFailure) -> str:
    """Return a failure in a line."""
    return (
        f"FAILS: {failure.function} on {failure.target}, {failure.scope}:{failure.index}:"
        f" {failure.line}"
    )
