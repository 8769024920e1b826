"""Limits: the memory of a process, the time of a call, and a journal that outlives the process.

What exceeds a limit is a `Failure` of the story in progress. What cannot be stopped (a crash, an
endless loop in C) ends the worker of pytest-xdist; then the journal says which story that was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import torch

from conformance.harness.story import Difference, Failure, Story, Verdict
from conformance.harness.targets import Target

GRACE_SECONDS: Final = 10.0
"""How long after its time limit a call may ignore the signal, before the process ends."""

JOURNAL_BYTES: Final = 2**18
"""The journal has a larger story in a line of text: it cannot be replayed after a crash."""

_HEAD: Final = 8


class CallTooSlow(BaseException):  # no check takes it for an answer
    """Raised in the main thread by a call that exceeds its time limit."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception says that memory could not be allocated."""
    is_torchs = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return is_torchs or isinstance(error, MemoryError | torch.OutOfMemoryError)


class Journal:
    """The test and the story in progress, in a file that outlives this process."""

    def __init__(self, path: Path, test: str) -> None:
        path.write_bytes(bytes(JOURNAL_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), JOURNAL_BYTES)
        self._test = test
        self._write(pickle.dumps((test, "", None)))

    def begin(self, target: str, story: Story) -> None:
        """Record that a story begins on a target."""
        data = b""
        if sum(getattr(value, "nbytes", 0) for value in story.arguments.values()) < JOURNAL_BYTES:
            with contextlib.suppress(Exception):  # it has an object that cannot be pickled
                data = pickle.dumps((self._test, target, story), 5)
        if not 0 < len(data) <= JOURNAL_BYTES - _HEAD:
            data = pickle.dumps((self._test, target, summary(story)))
        self._write(data)

    def end(self) -> None:
        """Record that no test is in progress."""
        self._write(b"")

    def _write(self, data: bytes) -> None:
        self._memory[_HEAD : _HEAD + len(data)] = data
        self._memory[:_HEAD] = len(data).to_bytes(_HEAD, "little")


def read_journal(path: Path) -> tuple[str, str, Story | str | None] | None:
    """Return the test, the target and the story in progress when a process ended, if any.

    A story that could not be recorded is a line of text.
    """
    data = path.read_bytes() if path.exists() else b""
    size = int.from_bytes(data[:_HEAD], "little")
    # It is a file of our own.
    return pickle.loads(data[_HEAD : _HEAD + size]) if size else None  # noqa: S301


def summary(story: Story) -> str:
    """Return the call of a story in a line.

    >>> import numpy as np
    >>> summary(Story("f", {"seq_lens": np.zeros(3, np.int32), "num": 4, "x": "a" * 100}))
    'f(seq_lens=int32[3], num=4, x=str)'
    """

    def short(value: Any) -> str:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"{value.dtype}{[*value.shape]}"
        is_plain = isinstance(value, int | float | str | None) and len(repr(value)) <= 40
        return repr(value) if is_plain else type(value).__name__

    arguments = ", ".join(f"{name}={short(value)}" for name, value in story.arguments.items())
    return f"{story.function}({arguments})"


class Limits:
    """The limits of one test after the other.

    Args:
        seconds: The time limit of a story.
        gib: What a test may allocate, touched or not; None for no limit.
        folder: Where the journal and the stack of this process are for the controller, which goes
            on when this process has ended; None if there is none.
        worker: The name of this process.
    """

    def __init__(
        self, seconds: float, gib: float | None, folder: Path | None = None, worker: str = ""
    ) -> None:
        self.seconds, self.gib, self.folder, self.worker = seconds, gib, folder, worker
        self.patience = seconds
        self.journal: Journal | None = None
        self.is_armed = False
        self._stack: IO[bytes] | None = None
        self._ends_at = 0.0

    @contextlib.contextmanager
    def running(self, test: str) -> Iterator[None]:
        """Apply the limits while a test runs in the main thread."""
        global _CURRENT  # noqa: PLW0603  # `call` is used where the run is not at hand
        handler = signal.signal(signal.SIGALRM, self._too_slow)
        _CURRENT, self.patience = self, self.seconds
        try:
            with self._journaling(test), self._memory_limit():
                yield
        finally:
            _CURRENT = None
            signal.signal(signal.SIGALRM, handler)

    @contextlib.contextmanager
    def _journaling(self, test: str) -> Iterator[None]:
        if self.folder is None:
            yield
            return
        self.journal = Journal(self.folder / f"{self.worker}.journal", test)
        with (self.folder / f"{self.worker}.stack").open("wb") as self._stack:
            faulthandler.enable(self._stack)
            self._watch()  # calls outside of stories may hang too
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                faulthandler.enable()
                self.journal.end()
                self.journal = None

    @contextlib.contextmanager
    def _memory_limit(self) -> Iterator[None]:
        status = Path("/proc/self/status")
        if self.gib is None or not status.exists():
            yield
            return
        used = int(status.read_text("ascii").partition("VmData:")[2].split()[0]) * 1024
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + int(self.gib * 2**30), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def _watch(self) -> None:
        """End this process, with a thread that needs no GIL, unless another story begins."""
        assert self._stack is not None
        after = self.patience + GRACE_SECONDS
        self._ends_at = time.monotonic() + after
        faulthandler.dump_traceback_later(after, exit=True, file=self._stack)

    def start(self) -> None:
        """Start the clock."""
        if self.journal is not None and self._ends_at < time.monotonic() + self.patience + 5:
            self._watch()
        self.is_armed = True
        # Repeated, since an exception raised in a destructor is ignored.
        signal.setitimer(signal.ITIMER_REAL, self.patience, 1.0)

    def stop(self) -> None:
        """Stop the clock."""
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _too_slow(self, *_: object) -> None:
        if self.is_armed:
            raise CallTooSlow


_CURRENT: Limits | None = None


def _limit_child() -> None:
    """Let a forked child end: it would keep the pipes of a dead worker open."""
    if _CURRENT is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _CURRENT.seconds)


os.register_at_fork(after_in_child=_limit_child)


@contextlib.contextmanager
def call(target: Target, story: Story) -> Iterator[None]:
    """Limit the time of a story on a target, and record it in the journal.

    Outside of a test of the plugin it does nothing.

    Raises:
        Failure: The time is over; or an exception, or a difference found, is want of memory.
    """
    limits = _CURRENT
    if limits is None:
        yield
        return
    if limits.journal is not None:
        limits.journal.begin(target.name, story)
    limits.start()
    try:
        yield
    except CallTooSlow:
        words = f"needs more than {limits.patience:g} s"
        if limits.patience < limits.seconds:
            words += f", and a larger call more than {limits.seconds:g} s"
        limits.patience = min(limits.seconds, max(1.0, limits.seconds / 10))  # to shrink sooner
        raise failure_of(target.name, story, words) from None
    except Exception as error:
        got = getattr(getattr(error, "difference", None), "got", error)
        if limits.gib is None or not is_out_of_memory(got):
            raise
        raise failure_of(target.name, story, f"needs more than {limits.gib:g} GiB") from None
    finally:
        limits.stop()


def failure_of(target: str, story: Story, words: str) -> Failure:
    """Return the failure of a story without an answer: what it needs, or how its process ended."""
    is_valid = story.changed is None
    verdict = Verdict.WRONG_ANSWER if is_valid else Verdict.ROBUSTNESS
    return Failure(story, target, Difference("the call", words, "a result", words, verdict))
