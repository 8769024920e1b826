"""Runs functions in processes, each in one of its own, which may crash."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar
from unittest import mock

from conformance.command_line import starting_workers
from kvtwin.processes import kill_all, started

T = TypeVar("T")

ENVIRONMENT: Final = {
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # one order of sets: a test draws the same in every process
}


def start_server() -> None:
    """Start the server that forks the processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tools.mutation.preload"])
    with mock.patch.dict(os.environ, ENVIRONMENT), starting_workers():
        forkserver.ensure_running()


def run(function: Callable[..., None], *args: Any) -> tuple[list[Any], int]:  # noqa: ANN401
    """Call a function in a process, with a connection as the last argument.

    Returns:
        What it has sent, and the exit code: 0, minus the signal that ended it, or its status.

    Raises:
        RuntimeError: It raised an exception.
    """
    received: list[Any] = []
    context = multiprocessing.get_context("forkserver")
    with (
        started(context, _call, function, args) as (process, connection),
        contextlib.suppress(EOFError, OSError),
    ):
        while True:
            received.append(connection.recv())
    if received and isinstance(received[-1], RuntimeError):
        raise received[-1]
    return received, process.exitcode or 0


def _call(function: Callable[..., None], args: tuple[Any, ...], connection: Connection) -> None:
    try:
        function(*args, connection)
    except BaseException as error:  # noqa: BLE001  # the other process raises it
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def run_each(
    function: Callable[[T], Any], subjects: Iterable[T], workers: int
) -> Iterator[tuple[T, Any]]:
    """Call a function that runs a process for each subject, several at a time.

    Yields:
        The subjects and what was returned, as soon as it is known.
    """
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(function, subject): subject for subject in subjects}
        try:
            for future in as_completed(waiting):
                yield waiting.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_all()
