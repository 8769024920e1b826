"""The Python that starts quickly behaves like Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

PRINTER = """
import os, sys
print(sys.argv, __name__, sys.path[0], os.getcwd(), os.environ["WORD"], sys.stdin.read())
"""


def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a process, and return how it ended."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]  # noqa: S603  # our own
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("arguments", [("-c", PRINTER), ("-m", "printer"), ("printer.py",)])
def test_it_is_the_same_process(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code, a module or a script finds its arguments, folder, environment and standard input."""
    (tmp_path / "printer.py").write_text(PRINTER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORD", "w")
    given = (*arguments, "-x", "y")
    forked = run(*given, input="z")
    monkeypatch.undo()
    assert "-x" in forked.stdout
    options = {"cwd": tmp_path, "env": os.environ | {"WORD": "w"}, "input": "z"}
    fresh = run(*given, **options)
    assert "" == forked.stderr == fresh.stderr
    assert fresh.stdout == forked.stdout


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('a reason')", 1, "a reason\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", -15, ""),
        ("import os; os._exit(5)", 5, ""),
        ("import atexit; atexit.register(print, 'end')", 0, ""),
    ],
)
def test_it_ends_as_python_does(code: str, status: int, error: str) -> None:
    """A process ends with its own status or signal, after calling its atexit functions."""
    ended = run("-c", code)
    assert (status, error) == (ended.returncode, ended.stderr)
    assert ("end\n" if "atexit" in code else "") == ended.stdout


def test_an_exception_ends_it() -> None:
    """An exception prints a traceback, and the status is 1."""
    ended = run("-c", "1 / 0")
    assert 1 == ended.returncode
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_signal_is_passed_on() -> None:
    """A process can handle a signal to its launcher, and choose its own status."""
    code = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("ready", flush=True)
    time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # our own
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert 7 == process.wait()


def test_it_ends_with_its_launcher() -> None:
    """A process whose launcher is killed does not go on: its end of a pipe is closed."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:  # noqa: S603  # our own
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        process.kill()
        assert b"" == process.stdout.read()


def test_an_open_file_is_inherited() -> None:
    """An inherited file keeps its number."""
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, b'done')"
    assert 0 == run("-c", code, pass_fds=(writer,)).returncode
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"done" == pipe.read()


def test_what_python_reads_at_its_start_is_refused() -> None:
    """A forked process cannot have another encoding, or other hashes."""
    ended = run("-c", "pass", env=os.environ | {"PYTHONUTF8": "0"})
    assert 1 == ended.returncode
    assert "PYTHONUTF8 is read when Python starts: it needs another server" in ended.stderr


def test_numba_has_its_settings() -> None:
    """The variables that numba reads when it is imported are the process' own."""
    ended = run(
        *("-c", "import numba; print(numba.config.CACHE_DIR)"),
        env=os.environ | {"NUMBA_CACHE_DIR": "a folder"},
    )
    assert "a folder\n" == ended.stdout


def test_nothing_of_ours_is_imported_before() -> None:
    """The server imports neither our packages nor Hypothesis."""
    ended = run("-c", "import sys; print(*sorted(sys.modules))")
    imported = {name.partition(".")[0] for name in ended.stdout.split()}
    assert {"torch", "numpy", "numba", "pytest"} <= imported
    assert not imported & {"hypothesis", "fast", "reference", "conformance", "tools"}
