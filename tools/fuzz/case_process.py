"""Try a stored case with the implementation of one commit, in a process that may crash or hang."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any, Final

from tools.fuzz.commit_check import COMMAND

START_SECONDS: Final = 300.0
"""Until then everything must be imported, by a slow machine too."""

CASE_SECONDS: Final = 60.0
"""A case that takes longer hangs."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case at one commit.

    Attributes:
        status: `passes`, `fails`, or `untestable`.
        key: What makes two failures the same; empty if it did not fail.
        line: The failure, or why the case could not be tried, in a line.
    """

    status: str
    key: tuple[str, ...] = ()
    line: str = ""


def try_case(
    request: Mapping[str, Any], environment: Mapping[str, str], seconds: float = CASE_SECONDS
) -> Outcome:
    """Try a case in a process of its own.

    Args:
        request: As `commit_check.main` takes it, without the pipe.
        environment: Of the process.
        seconds: How long the case may take.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603  # our own
            [*COMMAND, json.dumps({**request, "pipe": writer})],
            pass_fds=(writer,),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
    finally:
        os.close(writer)
    try:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            answer = _read_line(pipe, START_SECONDS)
            if answer is None:
                return Outcome("untestable", line=f"not imported within {START_SECONDS:g} s")
            if answer and json.loads(answer)["status"] == "started":
                return _outcome_of(_read_line(pipe, seconds), process)
        if answer:
            return Outcome("untestable", line=json.loads(answer)["line"])
        return Outcome("untestable", line=f"the import ends the process: {_end_of(process)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome_of(answer: bytes | None, process: subprocess.Popen[bytes]) -> Outcome:
    """Return what a line says of a case, or the lack of one."""
    if answer is None:
        return Outcome("fails", ("hang",), "the case hangs")
    if not answer:
        how = _end_of(process)
        return Outcome("fails", ("crash",), f"the process died: {how}")
    values = json.loads(answer)
    return Outcome(values["status"], tuple(values.get("key", ())), values.get("line", ""))


def _end_of(process: subprocess.Popen[bytes]) -> str:
    status = process.wait()
    return signal.Signals(-status).name if status < 0 else f"exit {status}"


def _read_line(pipe: io.FileIO, seconds: float) -> bytes | None:
    """Return the next line, empty at the end of the pipe; None if it does not come in time."""
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return None
        byte = pipe.read(1)
        if not byte:
            return b""
        line += byte
    return line
