"""A worker: one child process that runs jobs, watched by this process.

The next input is in shared memory, so it is known if the child dies. A child is killed if it notes
no new input for `hang_seconds`, or uses more than `memory_bytes`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from conformance.entry_point import starting_workers
from conformance.execution.process_memory import rss_bytes
from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message
from kvtwin.fuzz.workers.worker_process import (
    LOST_CONTEXT_EXIT,
    USED_GPU,
    SharedState,
    run_jobs,
)

POLL_SECONDS: Final = 0.2
"""How often a child is checked while it sends nothing."""

END_SECONDS: Final = 10.0
"""How long to wait for a child that was killed, or has closed its pipe."""

START_SECONDS: Final = 300.0
"""How long the imports of a child may take; on a new node of a cluster, they compile loops."""

STARTING: Final = threading.Lock()
"""The lock for starting a child or reading its exit status.

`multiprocessing` polls all children when it starts one. If two threads poll the same child of a
fork server at once, the later one gets the exit status 255.
"""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a worker.

    Attributes:
        hang_seconds: A case that takes longer counts as hung.
        memory_bytes: A worker with more resident memory is killed, and a child that it forked.
        recycle_bytes: A worker with more resident memory after a job is replaced.
    """

    hang_seconds: float = 60.0
    memory_bytes: int = 6 << 30
    recycle_bytes: int = 2 << 30


PRELOAD: Final = ("kvtwin.fuzz.preload",)
"""Modules that the fork server imports once; each child calls their `prepare()`, if any."""


def start_fork_server(preload: tuple[str, ...] = PRELOAD) -> None:
    """Start the fork server early, so that its imports overlap with those of this process.

    It and the workers ignore Ctrl-C, which a terminal sends to all processes.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(preload))
    with starting_workers():
        multiprocessing.forkserver.ensure_running()


def kill_fork_server() -> None:
    """Kill the fork server, which would import for seconds before it notices that it is alone."""
    server: Any = multiprocessing.forkserver._forkserver  # noqa: SLF001  # it has no public name
    pid = server._forkserver_pid  # noqa: SLF001
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class LocalWorker:
    """One child process at a time, started when the first job comes and again after it is lost.

    Args:
        name: Its name in the report.
        limits: The limits of the child.
        preload: Modules that the fork server imports once.

    Attributes:
        restarts: How often a child was started after the first.
        recycled: How many of these replaced a child that had become too large.
    """

    def __init__(self, name: str, limits: Limits, preload: tuple[str, ...] = PRELOAD) -> None:
        self.name, self.limits, self.preload = name, limits, preload
        self.restarts = self.recycled = 0
        self._child: _Child | None = None
        self._has_started = self._is_stopped = self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child now."""
        return self._child.process.pid if self._child is not None else None

    def run(self, job: Job) -> Iterator[Event]:
        """Run a job; yield its messages, then `Finished` or `Lost`."""
        if self._is_closed:
            yield Lost(job, "stopped", worker=self.name)
            return
        is_new = self._child is None
        if self._child is None:
            self.restarts += self._has_started
            self._child = _Child(self.preload, self.limits.memory_bytes)
            self._has_started = True
        child = self._child
        if self._is_stopped:
            child.shared.is_over = True
        for event in child.run(job, self.limits, lambda: self._is_closed):
            if isinstance(event, Lost):
                self._end_child()
                if event.reason == USED_GPU and not is_new:
                    yield from self.run(job)
                    return
                reason = "error" if event.reason == USED_GPU else event.reason
                yield dataclasses.replace(event, reason=reason, worker=self.name)
                return
            if isinstance(event, Finished) and event.rss_bytes > self.limits.recycle_bytes:
                self._end_child()
                self.recycled += 1
            yield event

    def stop(self) -> None:
        """Signal jobs to end: `WorkerContext.is_over` is true in the child from now on."""
        self._is_stopped = True
        child = self._child
        if child is not None:
            child.shared.is_over = True

    def close(self) -> None:
        """End the child; a running job is lost as `stopped`."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.end()

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class _Child:
    """A child process, with its pipe and its shared memory."""

    def __init__(self, preload: tuple[str, ...], memory_bytes: int) -> None:
        # A child of the fork server starts in 50 ms.
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        self.shared: SharedState = context.RawValue(SharedState)
        self._stacks = tempfile.NamedTemporaryFile(prefix="kvtwin-fuzz-")  # noqa: SIM115
        self._ours, theirs = context.Pipe()
        self.process = context.Process(
            target=run_jobs,
            args=(theirs, self.shared, self._stacks.name, os.getpid(), preload, memory_bytes),
            daemon=True,
            name="kvtwin-fuzz",
        )
        with _without_main_module():
            self.process.start()
        theirs.close()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._exit_code()
        with contextlib.suppress(OSError):  # the thread that runs jobs may do the same
            self._ours.close()
            self._stacks.close()

    def run(self, job: Job, limits: Limits, is_closed: Callable[[], bool]) -> Iterator[Event]:
        """Run a job; yield its messages, then `Finished` or `Lost`."""
        watch = _Watch(self, job, limits)
        try:
            self._ours.send(job)
        except OSError:
            yield Lost(job, "stopped" if is_closed() else self._how_it_ended())
            return
        reason = ""
        while not reason:
            try:
                if self._ours.poll(POLL_SECONDS):
                    kind, content = self._ours.recv()
                    if kind == "message":
                        yield Message(job, content)
                        continue
                    if kind == "finished":
                        yield Finished(job, *content)
                    else:
                        yield Lost(job, kind, self.shared.read(), content)
                    return
            except (EOFError, OSError, TypeError, ValueError):  # the last two if `close` closed it
                reason = "stopped" if is_closed() else self._how_it_ended()
            else:
                reason = "stopped" if is_closed() else watch.reason_to_kill()
                if reason:
                    self._kill(has_stacks=reason != "stopped")
        yield Lost(job, reason, self.shared.read(), self._read_stacks())

    def _kill(self, *, has_stacks: bool) -> None:
        """Kill the process; with `has_stacks` it dumps its stacks before, if it still can."""
        if has_stacks:
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        self.process.kill()

    def _how_it_ended(self) -> str:
        code = self._exit_code()
        if code is None:
            self.process.kill()
            return "a closed pipe"
        if code == LOST_CONTEXT_EXIT:
            return "lost GPU context"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"

    def _exit_code(self) -> int | None:
        """Wait for the process to end; return its exit status, None if it has not ended in time."""
        until = time.monotonic() + END_SECONDS
        while True:
            with STARTING:
                code: int | None = self.process.exitcode
            if code is not None or time.monotonic() > until:
                return code
            time.sleep(0.01)

    def _read_stacks(self) -> str:
        try:
            return Path(self._stacks.name).read_text(encoding="utf-8", errors="replace")
        except OSError:  # the file is gone: the pool is being closed
            return ""


class _Watch:
    """Detects a child that hangs, or takes too much memory; created before the job is sent.

    Args:
        child: The child.
        job: The job that it runs.
        limits: The limits of the child.
    """

    def __init__(self, child: _Child, job: Job, limits: Limits) -> None:
        self._child, self._limits = child, limits
        child.shared.write(b"")  # clears the last input of the job before
        self._first = self._count = child.shared.count
        self._since = time.monotonic()
        self._patience = job.hang_timeout_seconds or limits.hang_seconds

    def reason_to_kill(self) -> str:
        """Return why the child must be killed; empty if it need not be."""
        count = self._child.shared.count
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        # Before its first input, it may still import modules.
        has_begun = count != self._first
        patience = self._patience if has_begun else max(START_SECONDS, self._patience)
        if time.monotonic() - self._since > patience:
            return "hang"
        is_large = rss_bytes(self._child.process.pid) > self._limits.memory_bytes
        return "memory" if is_large else ""


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Prevent a child from importing the coordinator's `__main__`, a command line or pytest."""
    main = sys.modules["__main__"]
    STARTING.acquire()
    hidden = {name: vars(main).get(name) for name in ("__file__", "__spec__")}
    try:
        for name in hidden:
            setattr(main, name, None)
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)
        STARTING.release()
