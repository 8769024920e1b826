"""Shared by all tests: a Python that starts quickly, and processes that Ctrl-C ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path

import pytest

SERVER = Path(__file__).parent / "fork_server" / "server.py"
LAUNCHER = SERVER.with_name("launcher.py")


def pytest_configure() -> None:
    """Let SIGINT end the processes of tests, which a background job of a shell ignores."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude tests and modules from later garbage collections, which saves 0.3 s."""
    gc.collect()
    gc.freeze()


@contextmanager
def preloaded_python(python: Path, environment: dict[str, str]) -> Iterator[str]:
    """Start a fork server, and yield the file that replaces a Python.

    Args:
        python: The Python to replace.
        environment: Variables of its processes that differ from this process', and that Python
            reads when it starts.
    """
    folder = Path(tempfile.mkdtemp())  # not `tmp_path`, which is too long for a socket
    launcher = folder / "python"
    launcher.write_text(f"#!{python} -IS\n{LAUNCHER.read_text(encoding='utf-8')}", encoding="utf-8")
    launcher.chmod(0o700)
    with subprocess.Popen(  # noqa: S603  # our own
        [python, SERVER, folder / "server"],
        env=os.environ | environment | {"PYTHONPATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield str(launcher)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def _launcher() -> Iterator[str]:
    with preloaded_python(Path(sys.executable), {}) as launcher:
        yield launcher


@pytest.fixture
def forked_workers(_launcher: str) -> Iterator[None]:
    """Let `multiprocessing` start processes without importing torch again."""
    before = spawn.get_executable()
    multiprocessing.set_executable(_launcher)
    yield
    multiprocessing.set_executable(before)


@pytest.fixture
def forked_processes(_launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test start Python, as `sys.executable`, without importing torch again."""
    monkeypatch.setattr(sys, "executable", _launcher)
