"""Try what may crash or hang in a forked child."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import tempfile
import warnings
from collections.abc import Callable
from typing import IO, Any, Final

from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.gpu_context import ContextLostError, check_can_fork
from tools.fuzz.worker_process import LOST_CONTEXT_EXIT

CASE_SECONDS: Final = 20.0
"""A case that takes longer hangs; a worker waits a little longer for one."""

HANG_SECONDS: Final = 3.0
"""One that is like a case that hung for much longer hangs if it takes longer than this."""

MEMORY_EXIT: Final = 77
"""The exit status of a child that ran out of memory."""

HOW: Final = {0: "", MEMORY_EXIT: "out of memory", LOST_CONTEXT_EXIT: "lost GPU context"}
"""How a child ended, by its exit status."""


class ProcessDiedError(Exception):
    """A case that ended its process, or did not end.

    Args:
        how: `SIGSEGV`, `exit 3`, `hang`.
    """

    def __init__(self, how: str) -> None:
        super().__init__("the call hangs" if how == "hang" else f"the process died: {how}")
        self.how = how


def run_in_child(call: Callable[[], None], seconds: float = CASE_SECONDS) -> str:
    """Call a function in a forked child.

    Args:
        call: The function; what it raises is ignored.
        seconds: How long it may take.

    Returns:
        How the child died; empty if it came to its end.

    Raises:
        UsedGpuError: This process has used a GPU, so its children cannot.

    >>> run_in_child(lambda: None), run_in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
    ('', 'SIGKILL')
    """
    check_can_fork()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which ours only waits
        pid = os.fork()
    if pid == 0:
        limit = int(seconds) + 2  # of processor time, should this process not be there to kill it
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
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
        ready, _, _ = select.select([reader], [], [], seconds)  # it closes when the child ends
    finally:
        os.close(reader)
    if not ready:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "hang"
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return HOW.get(os.WEXITSTATUS(status), f"exit {os.WEXITSTATUS(status)}")


def draw_in_child(
    draw: Callable[[ConjectureData], object], data: ConjectureData, seconds: float = CASE_SECONDS
) -> str:
    """Call a function that draws in a forked child, and draw the same here.

    Args:
        draw: Draws, and may die of what it drew.
        data: What it draws from; afterwards all that the child drew has been drawn from it.
        seconds: How long it may take.

    Returns:
        How the child died; empty if it came to its end.
    """
    with tempfile.TemporaryFile(buffering=0) as record:

        def call() -> None:
            _record_draws(data, record)
            draw(data)

        how = run_in_child(call, seconds)
        record.seek(0)
        with contextlib.suppress(EOFError, StopTest):
            while True:
                name, arguments, options = pickle.load(record)  # noqa: S301  # our own child's
                getattr(data, name)(*arguments, **options)
    return how


def _record_draws(data: ConjectureData, record: IO[bytes]) -> None:
    """Let data write down each draw before it is made, and where spans of draws begin and end."""

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(data, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if options.get("observe", True):  # others are parts of a draw
                record.write(pickle.dumps((name, arguments, options)))
            return method(*arguments, **options)

        return call

    for name in ("_draw", "start_span", "stop_span"):
        setattr(data, name, recorded(name))
