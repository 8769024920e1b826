"""Start processes, which may crash, from several threads, and receive their results."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Final

_STARTING: Final = threading.Lock()
"""Serialises starting and joining processes.

`multiprocessing` supports neither from two threads at once, and a fork in one thread inherits the
open pipes of another, whose reader would wait for both processes.
"""


@contextlib.contextmanager
def started(
    context: BaseContext,
    function: Callable[..., None],
    *args: Any,  # noqa: ANN401  # any function's
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Start a process that calls a function, with a connection as the last argument.

    Yields:
        The process, and the other end of the connection, which raises EOFError or OSError when the
        process has ended. The process is joined at the end of the block.
    """
    with _STARTING:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=function, args=(*args, theirs))  # type: ignore[attr-defined]
        process.start()
        theirs.close()
    try:
        with ours:
            yield process, ours
    finally:
        with _STARTING:
            process.join()


def kill_all() -> None:
    """Kill all processes that this one has started."""
    for process in multiprocessing.active_children():
        process.kill()
