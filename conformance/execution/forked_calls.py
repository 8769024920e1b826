"""Makes calls that may end the process, or never return, in a forked child."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from conformance.execution.gpu_context import ContextLostError, check_can_fork

HANG: Final = "hang"
"""The end of a child that hung and was killed."""

MEMORY_EXIT: Final = 77
"""The exit status of a child that ran out of memory."""

LOST_CONTEXT_EXIT: Final = 78
"""The exit status of a child whose GPU context was lost."""

HOW: Final = {MEMORY_EXIT: "out of memory", LOST_CONTEXT_EXIT: "lost GPU context"}
"""How a child ended, by its exit status."""

POLL_SECONDS: Final = 0.5
"""The interval at which a child is checked."""

STACK_SECONDS: Final = 1.0
"""The time that a hanging child has to write its stack."""

_PR_SET_PDEATHSIG: Final = 1


def run_in_child(
    call: Callable[[], object],
    seconds: float,
    progress: Callable[[], int] = lambda: 0,
) -> str:
    """Call a function in a forked child.

    Args:
        call: The function; exceptions are ignored, except `MemoryError` and `ContextLostError`.
        seconds: How long it may take, or how long `progress` may stay the same.
        progress: Returns a number that changes when the child makes progress.

    Returns:
        How the child died: `SIGSEGV`, `exit 3`, `hang`, `out of memory`, ...; empty if it ended
        normally.

    Raises:
        UsedGpuError: This process has used a GPU, so its children cannot.

    >>> run_in_child(lambda: None, 9), run_in_child(lambda: os.kill(os.getpid(), 9), 9)
    ('', 'SIGKILL')
    """
    check_can_fork()
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            call()
        except MemoryError:
            os._exit(MEMORY_EXIT)
        except ContextLostError:
            os._exit(LOST_CONTEXT_EXIT)
        except BaseException:  # noqa: BLE001, S110  # a failure of another kind, found without a child
            pass
        os.write(writer, b".")
        os._exit(0)
    os.close(writer)
    watch = Watch(pid, seconds, progress)
    try:
        while not watch.hangs():
            if select.select([reader], [], [], min(seconds, POLL_SECONDS))[0]:
                # Nothing can be read if the pipe was closed by the child's death.
                has_finished = os.read(reader, 1)
                how = how_it_ended(os.waitpid(pid, 0)[1])
                return "" if has_finished else how
    finally:
        os.close(reader)
    kill_hanging(pid)
    return HANG


class Watch:
    """Detects that a child hangs: it computes or sleeps for too long without progress.

    On a busy machine, the time that it waits for a processor does not count.

    Args:
        pid: The child.
        seconds: How long it may take, or how long `progress` may stay the same.
        progress: Returns a number that changes when the child makes progress.
    """

    def __init__(self, pid: int, seconds: float, progress: Callable[[], int]) -> None:
        self._stat, self._seconds, self._progress = Path(f"/proc/{pid}/stat"), seconds, progress
        self._last: int | None = None
        self._waited = self._looked_at = self._computed = 0.0

    def hangs(self) -> bool:
        """Check the child, and return whether it hangs."""
        progress, now, before = self._progress(), time.monotonic(), self._computed
        is_running = False
        with contextlib.suppress(OSError):  # without such a file, all time counts
            fields = self._stat.read_text(encoding="ascii").rpartition(")")[2].split()
            is_running = fields[0] == "R"
            self._computed = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if progress != self._last:
            self._waited = 0.0
        else:
            self._waited += self._computed - before if is_running else now - self._looked_at
        self._last, self._looked_at = progress, now
        return self._waited >= self._seconds


def fork() -> int:
    """Fork this process, like `os.fork`; the child dies with its parent."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads; ours only waits
        pid = os.fork()
    if pid == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has died since
            os._exit(1)
    return pid


def kill_hanging(pid: int) -> None:
    """Kill a child, after time to write its stack if it registered SIGUSR1 for that."""
    os.kill(pid, signal.SIGUSR1)
    select.select([], [], [], STACK_SECONDS)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def how_it_ended(status: int) -> str:
    """Return how a process ended, from its status in `os.waitpid`.

    >>> how_it_ended(3 << 8), how_it_ended(signal.SIGSEGV)
    ('exit 3', 'SIGSEGV')
    """
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return HOW.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")
