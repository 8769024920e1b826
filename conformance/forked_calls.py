"""Calls that may end the process, or never return: they are made in a forked child."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Final

from conformance.gpu_context import ContextLostError, check_can_fork

HANG: Final = "hang"
"""How a child ended that had to be killed."""

MEMORY_EXIT: Final = 77
"""The exit status of a child that ran out of memory."""

LOST_CONTEXT_EXIT: Final = 78
"""The exit status of a child whose GPU context was lost."""

HOW: Final = {0: "", MEMORY_EXIT: "out of memory", LOST_CONTEXT_EXIT: "lost GPU context"}
"""How a child ended, by its exit status."""

STACK_SECONDS: Final = 0.3
"""What a child that hangs may take to write its stack, if it can."""

_PR_SET_PDEATHSIG: Final = 1


def run_in_child(
    call: Callable[[], object], seconds: float, progress: Callable[[], int] = lambda: 0
) -> str:
    """Call a function in a forked child.

    Args:
        call: The function; what it raises is ignored.
        seconds: How long it may take, or how long `progress` may stay the same.
        progress: Returns another number whenever the child has got further.

    Returns:
        How the child died: `SIGSEGV`, `exit 3`, `hang`, ...; empty if it came to its end.

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
        except BaseException:  # noqa: BLE001  # a failure of another kind, found without a child
            os._exit(0)
        os._exit(0)
    os.close(writer)
    try:
        before = None
        while (now := progress()) != before:
            before = now
            if select.select([reader], [], [], seconds)[0]:  # it closes when the child ends
                _, status = os.waitpid(pid, 0)
                return how_it_ended(status)
    finally:
        os.close(reader)
    kill_hanging(pid)
    os.waitpid(pid, 0)
    return HANG


def fork() -> int:
    """Fork this process, like `os.fork`; the child dies with its parent."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which ours only waits
        pid = os.fork()
    if pid == 0 and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died since
            os._exit(1)
    return pid


def kill_hanging(pid: int) -> None:
    """Kill a child, after it wrote its stack if it registered SIGUSR1 for that."""
    os.kill(pid, signal.SIGUSR1)
    select.select([], [], [], STACK_SECONDS)
    os.kill(pid, signal.SIGKILL)


def how_it_ended(status: int) -> str:
    """Return how a process ended, by what `os.waitpid` says; empty for exit status 0.

    >>> how_it_ended(3 << 8), how_it_ended(signal.SIGSEGV)
    ('exit 3', 'SIGSEGV')
    """
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return HOW.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")
