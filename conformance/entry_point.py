"""Starts and ends command lines alike: `kvtwin COMMAND`, `python -m conformance`.

| what happens | printed to stderr | exit status |
|---|---|---|
| Ctrl-C | one line | 130 |
| the reader of the output closes the pipe | nothing | 141, as for a process that SIGPIPE ends |
| the device that is written to is full | one line | 1 |
| a package is missing | one line, which names the extra to install | 2 |

A character that the encoding of stdout lacks is printed as `?`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, NoReturn

FAILED: Final = 1
USAGE_ERROR: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
CLOSED_PIPE: Final = 128 + signal.SIGPIPE

FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra. PyPI has no kvtwin: the name is free."""
    return f"pip install -e '.[{extra}]' in a checkout of kvtwin"


def run(module: str, extra: str = "test", program: str = "") -> NoReturn:
    """Import a module, call its `main()`, and exit with the status that this returns.

    A module that `python -m` runs calls this before any slow import.

    Args:
        module: The module; of a package, its `command_line` or `__main__`.
        extra: The extra that installs what the command line needs.
        program: The prefix of messages; by default `python -m` and the name of the module.
    """
    if not program:
        program = f"python -m {module.removesuffix('.__main__').removesuffix('.command_line')}"
    INTERRUPTS.handle(program)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = _status_of(module)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _has_closed_pipe():
            status = CLOSED_PIPE
        elif error.errno in FULL:
            status = FAILED
            _report(program, f"cannot write: {error.strerror}")
        else:
            raise
    except ImportError as error:
        package = _missing_package(error)
        if package is not None:
            _report(program, f"needs {package}: {how_to_install(extra)}")
        elif _missing_package(error.__cause__) is not None:  # `error` says what to install
            _report(program, str(error))
        else:
            raise
        status = USAGE_ERROR
    _close_output()
    sys.exit(status)


def _status_of(module: str) -> str | int | None:
    status: str | int | None
    try:
        main = importlib.import_module(module).main
        INTERRUPTS.unwinds = True
        status = main()
    except SystemExit as ended:
        # rich turns a closed pipe into this.
        status = CLOSED_PIPE if isinstance(ended.__context__, BrokenPipeError) else ended.code
    except BaseException:
        if not INTERRUPTS.happened:
            raise
    finally:
        INTERRUPTS.unwinds = False
    if INTERRUPTS.happened:  # `main` may have caught the exception itself
        INTERRUPTS.report()
        return INTERRUPTED
    print(end="", flush=True)  # noqa: T201  # what is left in the buffer, if there is a stdout
    return status


class _Interrupts:
    """Handles Ctrl-C in this process.

    While modules are imported the process ends at once: inside a compiled package an exception
    may be swallowed, or turned into another one. In `main` the first Ctrl-C raises
    KeyboardInterrupt, so that files are closed and processes ended, and a second one ends this
    process at once. An ignored SIGINT, as under nohup, stays ignored.

    Attributes:
        unwinds: Whether Ctrl-C raises KeyboardInterrupt, or ends the process at once.
        happened: Whether KeyboardInterrupt was raised.
    """

    def __init__(self) -> None:
        self.unwinds = False
        self.happened = False
        self._program = ""
        self._clean_up: Callable[[], None] | None = None

    def handle(self, program: str) -> None:
        self._program = program
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)

    @contextlib.contextmanager
    def importing(self, clean_up: Callable[[], None]) -> Iterator[None]:
        """Make Ctrl-C end this process at once inside, for imports in `main`."""
        unwinds, self.unwinds, self._clean_up = self.unwinds, False, clean_up
        try:
            yield
        finally:
            self.unwinds, self._clean_up = unwinds, None

    def report(self) -> None:
        _report(self._program, "interrupted")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.unwinds and not self.happened:
            self.happened = True
            signal.default_int_handler(number, frame)
        self.report()
        if self._clean_up is not None:
            self._clean_up()
        os._exit(INTERRUPTED)


INTERRUPTS: Final = _Interrupts()
"""The Ctrl-C handler of this process."""


def _report(program: str, message: str) -> None:
    """Write a line to stderr, past Python's buffers: a signal handler may interrupt their use."""
    with contextlib.suppress(OSError):
        os.write(2, f"{program}: {message}\n".encode("ascii", "backslashreplace"))


def _missing_package(error: BaseException | None) -> str | None:
    """Return the package that an import did not find; None if only a module of it is missing."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    return package if importlib.util.find_spec(package) is None else None


def _has_closed_pipe() -> bool:
    """Return whether nothing reads stdout or stderr any more."""
    poll = select.poll()
    for descriptor in (1, 2):  # of stdout and stderr
        poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _close_output() -> None:
    """Discard output that cannot be written: Python would retry at exit, and print an error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
