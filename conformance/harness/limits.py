"""Limits: the memory of a process, the time of a call, and a journal that outlives the process.

What exceeds a limit is a `Failure` of the story in progress. What cannot be stopped (a crash, an
endless loop in C) ends the worker of pytest-xdist; then the journal says which story that was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import re
import reprlib
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from conformance.harness.story import Difference, Failure, Story, Verdict
from conformance.harness.targets import Target

ITEM: Final = re.compile(
    r"::(?P<function>[\w.]+)(-[\w-]+)?"
    r"\[(?P<kind>stored|deviations|answers|refusals|laws)-(?P<target>[\w:]+)\]$"
)
"""The end of a node id: `::compute_slot_mapping[answers-host]`, `::...-1cd2fdf6[stored-host]`."""

GRACE_SECONDS: Final = 10.0
"""How long after its time limit a call may ignore the signal, before the process ends."""

BUSY: Final = 3
"""How many times its time limit a call may take that does not compute, or waits for a core."""


class CallTooSlow(BaseException):  # no check takes it for an answer
    """Raised in the main thread by a call that exceeds its time limit."""


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
        self._test = ""
        self._is_armed = False
        self._began = 0.0, 0.0
        self._files: list[int] = []
        if folder is not None:
            names = (folder / f"{worker}.{kind}" for kind in ("journal", "stack"))
            self._files = [os.open(name, os.O_CREAT | os.O_WRONLY, 0o600) for name in names]

    @contextlib.contextmanager
    def running(self, test: str) -> Iterator[None]:
        """Apply the limits while a test runs in the main thread."""
        global _CURRENT  # noqa: PLW0603  # `call` is used where the run is not at hand
        handler = signal.signal(signal.SIGALRM, self._too_slow)
        memory = resource.getrlimit(resource.RLIMIT_DATA)
        _CURRENT, self._test = self, test
        try:
            if self.gib is not None:
                most = _used_memory() + int(self.gib * 2**30)
                resource.setrlimit(resource.RLIMIT_DATA, (most, memory[1]))
            self.watch("")  # calls outside of stories may hang too
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, memory)
            signal.signal(signal.SIGALRM, handler)
            _CURRENT = None
            if self._files:
                faulthandler.cancel_dump_traceback_later()
                os.pwrite(self._files[0], pickle.dumps(None), 0)

    def watch(self, story: Story | str) -> None:
        """Write a story to the journal; end this process unless the next one begins in time."""
        if not self._files:
            return
        journal, stack = self._files
        try:
            data = pickle.dumps((self._test, story), 5)
        except Exception:  # noqa: BLE001  # it has an object that cannot be pickled
            assert isinstance(story, Story)
            values = (f"{name}={reprlib.repr(x)}" for name, x in story.arguments.items())
            data = pickle.dumps((self._test, f"{story.function}({', '.join(values)})"))
        os.pwrite(journal, data, 0)
        faulthandler.enable(stack)
        # Its thread needs no GIL.
        seconds = BUSY * self.seconds + GRACE_SECONDS
        faulthandler.dump_traceback_later(seconds, exit=True, file=stack)

    def set_clock(self, *, is_running: bool) -> None:
        """Start or stop the clock of a story."""
        self._is_armed = is_running
        self._began = time.monotonic(), time.process_time()
        # Repeated, since an exception raised in a destructor is ignored.
        signal.setitimer(signal.ITIMER_REAL, self.seconds * is_running, 1.0)

    def _too_slow(self, *_: object) -> None:
        waited, worked = time.monotonic() - self._began[0], time.process_time() - self._began[1]
        # On a busy machine a call waits for a core; one that waits for a lock ends too.
        if self._is_armed and (worked > self.seconds / 2 or waited > BUSY * self.seconds):
            raise CallTooSlow


_CURRENT: Limits | None = None


def read_journal(path: Path) -> tuple[str, Story | str] | None:
    """Return the test and the story in progress when a process ended, if any.

    A story that could not be pickled is a line of text; it is empty outside of a call.
    """
    data = path.read_bytes()
    return pickle.loads(data) if data else None  # noqa: S301  # it is a file of our own


def _used_memory() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return int(status.partition("VmData:")[2].split()[0]) * 1024


def _is_out_of_memory(error: object) -> bool:
    is_torchs = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return is_torchs or isinstance(error, MemoryError | torch.OutOfMemoryError)


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
    """
    limits = _CURRENT
    if limits is None:
        yield
        return
    limits.watch(story)
    limits.set_clock(is_running=True)
    try:
        yield
    except CallTooSlow:
        words = f"needs more than {limits.seconds:g} s"
        raise failure_of(target.name, story, words) from None
    except Exception as error:
        got = getattr(getattr(error, "difference", None), "got", error)
        if limits.gib is None or not _is_out_of_memory(got):
            raise
        raise failure_of(target.name, story, f"needs more than {limits.gib:g} GiB") from None
    finally:
        limits.set_clock(is_running=False)


def failure_of(target: str, story: Story, words: str) -> Failure:
    """Return the failure of a story without an answer: what it needs, or how its process ended."""
    verdict = Verdict.WRONG_ANSWER if story.changed is None else Verdict.ROBUSTNESS
    return Failure(story, target, Difference("the call", words, "a result", words, verdict))
