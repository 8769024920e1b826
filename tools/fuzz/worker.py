"""A worker: one child process that runs jobs, watched by this process.

The next input is in a file that both processes map, so that it is known if the child dies. A child
that does not note a new input for `hang_seconds` is killed, as is one that uses more than
`memory_bytes`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import mmap
import multiprocessing
import os
import resource
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tools.fuzz.jobs import Event, Finished, Job, Lost, Message

HEADER: Final = struct.Struct("qq")
"""Of the mapped file: how many inputs were noted, and the bytes of the last one."""

INPUT_BYTES: Final = 1 << 20
"""The longest input that can be noted."""

POLL_SECONDS: Final = 0.2

END_SECONDS: Final = 10.0
"""What a child may take to end once it was killed, or has closed its pipe."""

START_SECONDS: Final = 120.0
"""What a child may take to import all that it needs."""

LOST_CONTEXT_EXIT: Final = 78
"""The exit status of a child whose GPU context was lost."""

USED_GPU: Final = "used GPU"
"""Why a child gives a job back: it must fork, and has used a GPU."""

STARTING: Final = threading.Lock()
"""Held while a child is started, or checked for its end.

To start one, `multiprocessing` checks whether all have ended; and of two threads that check one
child of a fork server at once, the later one takes its exit status to be 255.
"""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a worker may take.

    Attributes:
        hang_seconds: A case that takes longer hangs.
        memory_bytes: A worker that has more resident memory is killed.
        recycle_bytes: A worker that has more after a job is replaced by a new one.
    """

    hang_seconds: float = 60.0
    memory_bytes: int = 6 << 30
    recycle_bytes: int = 2 << 30


@dataclasses.dataclass(frozen=True)
class Start:
    """How a child process is started.

    Attributes:
        preload: Modules that the fork server imports once; their functions `prepare()`, where they
            have one, are called in each child.
    """

    preload: tuple[str, ...] = ("tools.fuzz.preload",)

    def context(self) -> Any:
        """Return the context of `multiprocessing`."""
        context = multiprocessing.get_context("forkserver")  # a child starts in 50 ms
        context.set_forkserver_preload(list(self.preload))
        return context


class LocalWorker:
    """One child process at a time, started when the first job comes and again after it is lost.

    Args:
        name: What the report calls it.
        limits: What the child may take.
        start: How it is started.

    Attributes:
        restarts: How often a child was started after the first.
        recycled: How many of these replaced a child that had become too large.
    """

    def __init__(self, name: str, limits: Limits, start: Start | None = None) -> None:
        self.name, self.limits = name, limits
        self.restarts = self.recycled = 0
        self._start = start or Start()
        self._child: _Child | None = None
        self._has_started = False
        self._stopped = threading.Event()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child now."""
        return self._child.process.pid if self._child is not None else None

    def run(self, job: Job) -> Iterator[Event]:
        """Run a job; yield its messages, and at last `Finished` or `Lost`."""
        if self._closed:
            yield Lost(job, "stopped", worker=self.name)
            return
        if self._child is None:
            self.restarts += self._has_started
            self._child = _Child(self._start)
            self._has_started = True
        child = self._child
        is_new, child.is_new = child.is_new, False
        if self._stopped.is_set():
            child.stop()
        for event in child.run(job, self.limits, lambda: self._closed):
            if isinstance(event, Lost):
                self._child = None
                child.end()
                if event.reason == USED_GPU and not is_new:
                    yield from self.run(job)
                    return
                reason = "error" if event.reason == USED_GPU else event.reason
                event = dataclasses.replace(event, reason=reason, worker=self.name)  # noqa: PLW2901
            elif isinstance(event, Finished) and event.rss_bytes > self.limits.recycle_bytes:
                self._child = None
                self.recycled += 1
                child.end()
            yield event

    def stop(self) -> None:
        """Let `WorkerContext.is_over` be true in the child from now on."""
        self._stopped.set()
        child = self._child
        if child is not None:
            child.stop()

    def close(self) -> None:
        """End the child; a job that is running is lost as `stopped`."""
        self._closed = True
        child = self._child
        if child is not None:
            child.end()


class _Child:
    """A child process, and what it shares with this one."""

    def __init__(self, start: Start) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvtwin-fuzz-")
        folder = Path(self._folder.name)
        self.is_new = True
        self.shared = _SharedInput(folder / "input", create=True)
        self._stacks = folder / "stacks"
        self._stacks.touch()
        self._over = folder / "over"
        context = start.context()
        self._ours, theirs = context.Pipe()
        self.process = context.Process(
            target=_main,
            args=(theirs, folder, os.getpid(), start.preload),
            daemon=True,
            name="kvtwin-fuzz",
        )
        with _without_main_module():
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._over.touch()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._exit_code(END_SECONDS)
        with contextlib.suppress(OSError):  # the thread that runs jobs may do the same
            self._ours.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def run(self, job: Job, limits: Limits, is_closed: Callable[[], bool]) -> Iterator[Event]:
        watch = _Watch(self, job, limits)
        try:
            self._ours.send(job)
        except OSError:
            yield Lost(job, "stopped" if is_closed() else self._how_it_ended())
            return
        while True:
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
                yield Lost(job, reason, self.shared.read(), self._read_stacks())
                return
            reason = "stopped" if is_closed() else watch.reason_to_kill()
            if reason:
                if reason != "stopped":
                    self._dump_stacks()
                self.process.kill()
                yield Lost(job, reason, self.shared.read(), self._read_stacks())
                return

    def _dump_stacks(self) -> None:
        """Let the child write what it is doing, as far as it still can."""
        with contextlib.suppress(OSError):
            os.kill(self.process.pid, signal.SIGUSR1)
        time.sleep(0.3)

    def _how_it_ended(self) -> str:
        code = self._exit_code(END_SECONDS)
        if code is None:
            self.process.kill()
            return "a closed pipe"
        if code == LOST_CONTEXT_EXIT:
            return "lost GPU context"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"

    def _exit_code(self, seconds: float) -> int | None:
        """Wait until the process has ended; return its exit status, None if it has not ended."""
        until = time.monotonic() + seconds
        while True:
            with STARTING:
                code: int | None = self.process.exitcode
            if code is not None or time.monotonic() > until:
                return code
            time.sleep(0.01)

    def _read_stacks(self) -> str:
        try:
            return self._stacks.read_text(encoding="utf-8", errors="replace")
        except OSError:  # the folder is gone: the pool is being closed
            return ""


class _Watch:
    """Notices a child that hangs, or takes too much memory; made before the job is sent.

    Args:
        child: The child.
        job: What it runs.
        limits: What it may take.
    """

    def __init__(self, child: _Child, job: Job, limits: Limits) -> None:
        self._child, self._limits = child, limits
        self._count, self._since = child.shared.count(), time.monotonic()
        self._patience = getattr(job, "patience_seconds", None) or limits.hang_seconds
        self._before = self._count + 1  # the child notes an empty input when it has the job

    def reason_to_kill(self) -> str:
        """Return why the child must be killed; empty if it need not be."""
        count = self._child.shared.count()
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        # It may import modules before it begins.
        has_begun = self._count > self._before
        patience = self._patience if has_begun else max(START_SECONDS, self._patience)
        if time.monotonic() - self._since > patience:
            return "hang"
        is_large = rss_bytes(self._child.process.pid) > self._limits.memory_bytes
        return "memory" if is_large else ""


class _SharedInput:
    """The input that runs now, in a file that is mapped by two processes."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            with path.open("wb") as file:
                file.truncate(HEADER.size + INPUT_BYTES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._number = 0

    def write(self, data: bytes) -> None:
        """Note an input; one that is too long is cut, which its reader must notice."""
        self._number += 1
        data = data[:INPUT_BYTES]
        self._map[HEADER.size : HEADER.size + len(data)] = data
        self._map[: HEADER.size] = HEADER.pack(self._number, len(data))

    def count(self) -> int:
        """Return how many inputs were noted."""
        return int(HEADER.unpack(self._map[: HEADER.size])[0])

    def read(self) -> bytes:
        """Return the last input."""
        length = HEADER.unpack(self._map[: HEADER.size])[1]
        return self._map[HEADER.size : HEADER.size + length]


class _Context:
    """The `WorkerContext` of a child."""

    def __init__(self, pipe: Connection, folder: Path) -> None:
        self._pipe = pipe
        self._shared = _SharedInput(folder / "input")
        self._over = folder / "over"
        self._looked = 0.0
        self._is_over = False

    def note_input(self, data: bytes) -> None:
        """Write down the input that runs next."""
        self._shared.write(data)

    def report(self, message: object) -> None:
        """Send a message to the coordinator."""
        self._pipe.send(("message", message))

    def is_over(self) -> bool:
        """Return whether the job should end soon."""
        now = time.monotonic()
        if not self._is_over and now - self._looked > POLL_SECONDS:
            self._looked = now
            self._is_over = self._over.exists() or not self._over.parent.exists()
        return self._is_over


def _main(pipe: Connection, folder: Path, parent: int, preload: Sequence[str]) -> None:
    """Run jobs until the pipe closes: the body of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stacks = (folder / "stacks").open("w", encoding="utf-8")
    faulthandler.enable(stacks, all_threads=False)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    for name in preload:  # the fork server may have imported them
        prepare = getattr(importlib.import_module(name), "prepare", None)
        if prepare is not None:
            prepare()
    context = _Context(pipe, folder)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        context.note_input(b"")
        try:
            result = job.run(context)
        except BaseException as error:  # noqa: BLE001  # the coordinator reports it
            # An actor of Ray, which imports this module, need not have the harness.
            from conformance.gpu_context import ContextLostError, UsedGpuError  # noqa: PLC0415

            if isinstance(error, ContextLostError):
                os._exit(LOST_CONTEXT_EXIT)  # a new process has a new context
            if isinstance(error, UsedGpuError):
                pipe.send((USED_GPU, traceback.format_exc()))
                return
            pipe.send(("error", traceback.format_exc()))
            return
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        pipe.send(("finished", (result, rss_bytes(os.getpid()), peak)))


def _end_with(parent: int) -> None:
    """End this process when the coordinator is gone, even if it was killed."""
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            pass
        time.sleep(1)


def rss_bytes(pid: int | None) -> int:
    """Return the resident memory of a process; 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * mmap.PAGESIZE


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Let a child not import the coordinator's `__main__`, a command line or pytest."""
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
