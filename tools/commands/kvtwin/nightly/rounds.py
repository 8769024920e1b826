"""Runs a round: pytest in a process of its own, on this machine or on a node of a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kvtwin.checkout import COMMANDS, ROOT
from kvtwin.nightly.recorder import FOLDER

Record = dict[str, Any]
"""What `recorder` has written so far; `status` and `said` are added when the process has ended."""

POLL_SECONDS: Final = 0.5
END_SECONDS: Final = 40.0  # pytest gives its workers 10 s to end
USAGE_ERROR: Final = 4
ENDS_WELL: Final = (0, 1, 5)  # pytest's exit statuses; 5 if no test was selected


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round is started with."""

    number: int
    seed: int
    workers: int
    arguments: Sequence[str]  # of the conformance run
    databases: Sequence[str]
    first: Sequence[str]  # the tests that failed before


def run_round(
    one: Round, seconds: float, is_ended: Callable[[], bool] = lambda: False
) -> Iterator[Record]:
    """Run a round for some time at most; yield its record whenever it changes, and at the end."""
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kvtwin-round-") as name:
        folder = Path(name)
        (folder / "first.json").write_text(json.dumps(one.first), encoding="utf-8")
        process = _start(one, folder)
        try:
            written = 0.0
            while process.poll() is None and time.monotonic() < until and not is_ended():
                time.sleep(POLL_SECONDS)
                path = folder / "record.json"
                if path.exists() and path.stat().st_mtime != written:
                    written = path.stat().st_mtime
                    yield _read(path)
            was_cut_off = process.poll() is None
        finally:
            _end(process)
        is_well = was_cut_off or process.returncode in ENDS_WELL
        said = "" if is_well else _last_words(folder / "output.txt")
        yield {**_read(folder / "record.json"), "status": process.returncode, "said": said}


def _start(one: Round, folder: Path) -> subprocess.Popen[bytes]:
    run = [sys.executable, "-m", "conformance", "-p", "kvtwin.nightly.recorder", "-q"]
    run += ["-p", "no:cacheprovider", "-n", str(one.workers), "--profile", "nightly"]
    run += ["--seed", str(one.seed), "--failures", str(folder / "failures")]
    run += [word for place in one.databases for word in ("--database", place)]
    paths = [str(ROOT), str(COMMANDS), os.environ.get("PYTHONPATH", "")]
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(  # noqa: S603  # our own
            [*run, *one.arguments],
            env={**os.environ, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal sends Ctrl-C to all processes of a session
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let pytest end, as by Ctrl-C, and write its record; kill what is left of it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> Record:
    with contextlib.suppress(OSError, ValueError):
        found: Record = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {}


def _last_words(output: Path) -> str:
    """Return the line that says what is wrong, or the last ones."""
    text = output.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR: ", "python -m conformance: "))]
    return " ".join(errors[:1] or lines[-3:]).removeprefix("ERROR: ")[:1000]
