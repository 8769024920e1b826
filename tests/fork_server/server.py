"""Runs what Python would run, in processes forked from one that has imported torch already.

To import torch takes 2.5 s of one core, longer than all else that most processes of the tests do;
numba and pytest take 0.6. Of what Python reads when it starts, processes have the server's:
`PYTHONUTF8`, `LC_ALL`, the seed of hashes. Nothing of ours is imported before, so that what a
process imports of it, and when, can be tested; nor is Hypothesis, which pytest imports in its own
way.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import itertools
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

import numba  # see above
import numpy as np  # noqa: F401  # likewise
import pytest  # noqa: F401  # likewise
import torch  # noqa: F401  # likewise

PATH: Final = sys.path[1:]
"""Where every process finds modules; the first entry is this file's folder."""

OPTIONS: Final = ("-B", "-P", "-u")
"""What Python is given where a process starts another; but for `-P` it makes no difference here."""

READ_LATER: Final = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""What is applied to a process that is forked."""


def serve(path: str) -> None:
    """Fork a process for each connection, until the standard input is closed.

    Args:
        path: The socket to listen at.
    """
    gc.collect()
    gc.freeze()  # a collection in a child would copy the memory of all modules
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)  # noqa: T201  # the fixture waits for this line
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    listener.close()
                    accompany(connection)
            while _has_ended_child():
                pass


def _has_ended_child() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def accompany(connection: socket.socket) -> None:
    """Run what a launcher wants in a child, pass its signals on, and return the child's status.

    Args:
        connection: The launcher. If it ends before the child does, the child is killed.
    """
    header, files, _, _ = socket.recv_fds(connection, 8, 256)
    with connection.makefile("rb") as reader:
        request = json.loads(reader.read(int.from_bytes(header, "big")))
    os.setsid()
    child = os.fork()
    if not child:
        connection.close()
        become(request, files)
        run(request["arguments"])
    for file in files:
        os.close(file)
    connection.sendall(str(_wait(child, connection)).encode())
    os._exit(0)


def _wait(child: int, connection: socket.socket) -> int:
    """Return the exit status of a child."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        ready, _, _ = select.select([reading, connection], [], [])
        if reading in ready:
            reading.recv(64)
        if connection in ready:
            signals = connection.recv(64)
            if not signals:
                os.killpg(0, signal.SIGKILL)
            for number in signals:
                os.kill(child, number)


def become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Give this process what the launcher has.

    Args:
        request: What the launcher sent.
        files: Its open files.

    Raises:
        ValueError: It needs a Python that was started with another environment.
    """
    free = 1 + max(*files, *request["files"])
    held = [fcntl.fcntl(file, fcntl.F_DUPFD, free) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(held, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    given = request["environment"]
    for name in sorted(given.keys() | os.environ.keys()):
        is_read = name.startswith(("LANG", "LC_", "PYTHON")) and name not in READ_LATER
        if is_read and given.get(name) != os.environ.get(name):
            raise ValueError(f"{name} is read when Python starts: it needs another server")
    os.environ.clear()
    os.environ.update(given)
    numba.config.reload_config()  # type: ignore[no-untyped-call]
    sys.dont_write_bytecode = bool(given.get("PYTHONDONTWRITEBYTECODE"))
    sys.path[:] = [*filter(None, given.get("PYTHONPATH", "").split(os.pathsep)), *PATH]
    sys.executable = request["executable"]
    multiprocessing.set_executable(sys.executable)


def run(arguments: Sequence[str]) -> NoReturn:
    """Do what Python does with arguments, and end this process."""
    error: BaseException | None = None
    try:
        run_main(arguments)
    except BaseException as raised:  # noqa: BLE001  # as Python does
        error = raised
    end(error)


def run_main(arguments: Sequence[str]) -> None:
    """Do what Python does with `-m module ...`, `-c code ...`, or `script ...`."""
    options = list(itertools.takewhile(OPTIONS.__contains__, arguments))
    first, *rest = arguments[len(options) :]
    if first.startswith("-m") and first != "-m":
        first, rest = "-m", [first[2:], *rest]
    folder = {"-c": "", "-m": os.getcwd()}.get(first, os.path.dirname(os.path.realpath(first)))  # noqa: PTH109, PTH120  # as Python does
    if "-P" not in options:
        sys.path.insert(0, folder)
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-m":
        sys.argv = rest
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # as Python does
    elif first == "-c":
        sys.argv = [first, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))  # noqa: S102  # as Python does
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def end(error: BaseException | None) -> NoReturn:
    """End as Python does after an exception, or none; but modules stay, as torch's take 0.7 s."""
    status: object = 0
    if isinstance(error, SystemExit):
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)  # noqa: T201  # as Python does
    elif error is not None:
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()  # the public way to it is to end
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    serve(sys.argv[1])
    end(None)
