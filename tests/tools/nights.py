"""Starts nights as processes, and servers for them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 900  # on a busy machine
Line = dict[str, Any]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Night:
    """A night that the test ends."""

    def __init__(self, folder: Path, code: str, *arguments: str | Path) -> None:
        (folder / "mine.py").write_text(f"from fast import *\nimport fast\n{code}")
        words = ["--minutes", "60", "--out", "night", "--impl", "mine.py", "--target", "host"]
        self.history = folder / "night" / "history.jsonl"
        self.before = len(self._lines())
        self.process = subprocess.Popen(  # noqa: S603  # our own
            [sys.executable, "-m", "kvtwin.nightly", *words, *map(str, arguments)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _lines(self) -> list[str]:
        return self.history.read_text().splitlines() if self.history.exists() else []

    def line(self) -> Line:
        """Return the line of this night in the history, as written so far."""
        found = self._lines()[self.before :]
        return json.loads(found[0]) if found else {}

    def wait(self, condition: Callable[[Line], object]) -> None:
        """Wait until a condition on the line holds."""
        until(lambda: self.process.poll() is not None or condition(self.line() or NOTHING))
        assert self.process.poll() is None, self.process.communicate()[0]

    def end(self, condition: Callable[[Line], object]) -> Line:
        """Wait until a condition on the line holds; end the night, and return its line."""
        try:
            self.wait(condition)
            self.process.send_signal(signal.SIGTERM)
            printed, _ = self.process.communicate(timeout=SECONDS)
            assert (130, "SIGTERM") == (self.process.returncode, self.line()["ended"]), printed
            return self.line()
        finally:
            self.process.kill()


NOTHING: Line = {"failures": [], "fixed": [], "attention": [], "tests": 0, "rounds": 0}


def functions(line: Line) -> set[str]:
    return {failure["function"] for failure in line["failures"]}


class RedisServer:
    """A Redis server without a file, so that a restart loses its data."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        file = shutil.which("redis-server")
        assert file is not None
        words = [file, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)  # noqa: S603
        until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
