"""Runs `kvtwin fuzz` as a process, and reads its report, findings and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PLANTED = Path(__file__).parent / "planted" / "planted.py"
SECONDS = 300
"""The timeout of a process on a busy machine."""


def start(
    *arguments: str | Path, script: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    """Start a night, or a script that runs one, in a session of its own."""
    program = ["-m", "kvtwin.fuzz"] if script is None else [str(script)]
    return subprocess.Popen(  # noqa: S603  # our own
        [sys.executable, *program, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a night; return its exit status and what it printed."""
    try:
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, out


def run(*arguments: str | Path, **environment: str) -> tuple[int, str]:
    """Run a night; return its exit status and what it printed."""
    return ended(start(*arguments, **environment))


def report(out: Path) -> dict[str, Any]:
    """Return `report.json`."""
    found: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return found


def findings(out: Path) -> list[dict[str, Any]]:
    """Return the entries of `findings.json`; none if the file does not exist yet."""
    path = out / "findings" / "findings.json"
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["findings"]
    return found


def processes(session: int) -> dict[int, int]:
    """Return the processes of a session that have not ended, with their parents."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        state, parent, _, of_session = fields[:4]
        if int(of_session) == session and state not in "ZX":
            found[int(path.parent.name)] = int(parent)
    return found


def workers(session: int) -> list[int]:
    """Return the workers of a night: the processes that its fork server forked."""
    all_of_it = processes(session)
    return [pid for pid, parent in all_of_it.items() if all_of_it.get(parent) == session]


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: The condition does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {condition}"
        time.sleep(0.05)
