"""Processes forked from one server that has imported what takes long to import."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final

from conformance.command_line import starting_workers
from tools.mutation.mutant_process import PROJECT, Limited, Setup

ENVIRONMENT: Final = {
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # one order of sets: a check draws the same in every process
}


SHORT_SECONDS: Final = 60.0
"""Between two looks at a process that runs a check."""

LONG_SECONDS: Final = 600.0
"""And at one whose own processes run them."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What one process is to do.

    Attributes:
        subject: What it is about; the caller reads it with the messages.
        function: Is called with the arguments and a connection to answer through.
        arguments: Must be picklable.
    """

    subject: Any
    function: Callable[..., None]
    arguments: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Ended:
    """The last that is heard of a process.

    Attributes:
        exitcode: 0, or minus the signal that ended it, or what it exited with.
        is_late: Whether it was ended because it waited for something, and never for itself.
    """

    exitcode: int
    is_late: bool


@dataclasses.dataclass
class _Running:
    """A process at work.

    Attributes:
        task: What it does.
        process: The process.
        seconds_between_looks: Seconds between two looks at it.
        look_at: When to look at it again.
        used: Seconds of processor time that it had used at the last look.
        is_late: Whether it was ended, since it used none between two looks.
    """

    task: Task
    process: Any
    seconds_between_looks: float
    look_at: float
    used: float = -1.0
    is_late: bool = False

    def look(self) -> None:
        """End the process if it only waits; one that is slow, or was stopped, goes on."""
        try:
            used = _processor_seconds(self.process.pid)
        except OSError:
            return  # it has ended
        if used == self.used:
            self.is_late = True
            self.process.kill()
        self.used, self.look_at = used, time.monotonic() + self.seconds_between_looks


def _processor_seconds(pid: int) -> float:
    """Return what a process has used, with those of its children that have ended."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    return sum(map(int, after_name.split()[11:15])) / os.sysconf("SC_CLK_TCK")


def run_all(tasks: Iterable[Task], workers: int, setup: Setup) -> Iterator[tuple[Task, object]]:
    """Run tasks, so many at a time, and yield what each says, and at last its `Ended`.

    A process that says `Limited` ends itself after so much processor time; one that uses none for a
    minute is ended from here. Each task is drawn when there is a worker for it.

    Args:
        tasks: The tasks.
        workers: The most processes at a time.
        setup: Says what the server imports before it forks the first.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.mutation.preload", "tools.mutation.reach"])
    with _environment(setup), starting_workers():
        forkserver.ensure_running()
    waiting = iter(tasks)
    running: dict[Connection, _Running] = {}
    try:
        while True:
            while len(running) < workers and (task := next(waiting, None)) is not None:
                connection, started = _start(context, task)
                running[connection] = started
            if not running:
                return
            until = min(process.look_at for process in running.values()) - time.monotonic()
            for ready in wait(list(running), max(until, 0)):
                assert isinstance(ready, Connection)  # noqa: S101  # that is what was waited for
                yield from _listen(ready, running)
            for process in running.values():
                if process.look_at < time.monotonic():
                    process.look()
    finally:
        for left in running.values():
            left.process.kill()


def _start(context: ForkServerContext, task: Task) -> tuple[Connection, _Running]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=task.function, args=(*task.arguments, theirs), daemon=False)
    process.start()
    theirs.close()
    return ours, _Running(task, process, LONG_SECONDS, time.monotonic() + LONG_SECONDS)


def _listen(ready: Connection, running: dict[Connection, _Running]) -> Iterator[tuple[Task, Any]]:
    """Yield what a process says, or that it ended."""
    heard = running[ready]
    try:
        message = ready.recv()
    except (EOFError, OSError):
        heard.process.join()
        ready.close()
        del running[ready]
        yield heard.task, Ended(heard.process.exitcode, heard.is_late)
        return
    if isinstance(message, Limited) and heard.seconds_between_looks != SHORT_SECONDS:
        heard.seconds_between_looks = SHORT_SECONDS
        heard.look_at = time.monotonic() + SHORT_SECONDS
    yield heard.task, message


@contextlib.contextmanager
def _environment(setup: Setup) -> Iterator[None]:
    """Let the server start with one thread for each process; afterwards all is as it was."""
    before = dict(os.environ)
    project = [
        str(setup.project.root),
        str(setup.folder / "bytecode"),
        sorted(setup.independent),
    ]
    os.environ.update(ENVIRONMENT | {PROJECT: json.dumps(project)})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
