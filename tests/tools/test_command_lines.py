"""The exit of each command line: Ctrl-C, a closed pipe, a full device, a missing package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from conformance import entry_point
from kvtwin.commands import COMMANDS

ROOT = Path(entry_point.__file__).parents[1]
COMMANDS_FOLDER = ROOT / "tools" / "commands"


class Line(NamedTuple):
    """A command line: arguments of a short run, a package that it needs, and the extra of that."""

    short_run: str
    package: str
    extra: str = "test"
    needs: str = ""  # a required package that the extra `test` does not install


LINES = {
    "conformance": Line(
        "--functions CacheConfig --profile dev --target host -p no:cacheprovider",
        "hypothesis",
        "conformance",
    ),
    "kvtwin.bench": Line("--functions get_dcp_local_seq_lens", "matplotlib", "bench"),
    "kvtwin.bench.launches": Line("", "torch", "bench,cuda", needs="numba_cuda"),
    "kvtwin.kernels": Line("--arch sm_90", "torch", "kernels", needs="numba_cuda"),
    "kvtwin.nightly": Line(
        "--functions UBatchSlice --minutes 0.05 --workers 1 --out {folder}/night",
        "hypothesis",
        "nightly",
    ),
    "kvtwin.vectors": Line(
        "--functions map_to_kernel_blocks --examples 1 --out {folder}/vectors",
        "hypothesis",
        "vectors",
    ),
}


TOY = """
import ctypes, os, pathlib, signal, sys, time

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def main():
    {body}
    return 3
"""

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0"}
"""The environment of a locale of ASCII."""

FORCES_COLOURS = ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
"""Variables that decide on colours, which a test sets itself."""


FULL = ("conformance", "kvtwin.vectors")
"""Of all that print in the same way; each takes seconds."""


def program(name: str) -> str:
    """Return the program name in the messages of a module."""
    package, _, command = name.partition(".")
    is_command = package == "kvtwin" and command in COMMANDS
    return f"kvtwin {command}" if is_command else f"python -m {name}"


def start(
    *arguments: str, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  # our own
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit status and what it printed to stdout and to stderr."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out or "", err


def start_toy(folder: Path, body: str, **options: str | int) -> subprocess.Popen[str]:
    """Start a command line whose `main` has this body."""
    folder.joinpath("toy.py").write_text(TOY.format(body=body), encoding="utf-8")
    code = "from conformance.entry_point import run; run('toy')"
    path = os.pathsep.join(map(str, (ROOT, folder)))
    return start("-c", code, PYTHONPATH=path, **options)  # type: ignore[arg-type]  # stdout is an int


def without_reader() -> int:
    """Return the write end of a pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("name", LINES)
def test_ctrl_c_during_imports(name: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    for package in ("numba", "rich", "torch", "tqdm"):
        (tmp_path / f"{package}.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join(map(str, (tmp_path, ROOT, COMMANDS_FOLDER)))
    process = start("-m", name, PYTHONPATH=path)
    while not begun.exists():
        assert process.poll() is None, ended(process)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert (130, "", f"{program(name)}: interrupted\n") == ended(process)


@pytest.mark.parametrize("name", LINES)
def test_a_missing_package_is_one_line(name: str, tmp_path: Path) -> None:
    package, extra = LINES[name].package, LINES[name].extra
    code = (
        f"import runpy, sys; sys.modules[{package!r}] = None;"
        f" runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    options = ("--png", str(tmp_path / "growth.png")) if package == "matplotlib" else ()
    line = f"{program(name)}: needs {package}: {entry_point.how_to_install(extra)}\n"
    assert (2, "", line) == ended(start("-c", code, *options))


@pytest.mark.parametrize("name", LINES)
def test_a_full_device_ascii_and_no_terminal(name: str, tmp_path: Path) -> None:
    """Into /dev/full the error is one line; into a pipe there are no escape sequences."""
    if (package := LINES[name].needs) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} needs {package}")
    if name == "kvtwin.bench.launches" and not (torch.cuda.is_available() or shutil.which("cc")):
        pytest.skip(f"{name} needs a GPU or a C compiler")
    arguments = LINES[name].short_run.format(folder=tmp_path).split()
    with pytest.MonkeyPatch.context() as patch:
        for variable in FORCES_COLOURS:
            patch.delenv(variable, raising=False)
        _, out, err = ended(start("-m", name, *arguments, TERM="xterm-256color", **ASCII))
    assert (True, False) == (bool(out), "\x1b" in out + err), out + err
    if name.startswith("kvtwin."):
        assert "\r" not in out + err
    if Path("/dev/full").exists() and name in FULL:
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            status, _, err = ended(start("-m", name, *arguments, stdout=full.fileno(), **ASCII))
        assert (1, False) == (status, "Traceback" in err), err
        assert f"\n{program(name)}: cannot write: No space left on device\n" in f"\n{err}"


def test_a_closed_pipe_of_a_conformance_run() -> None:
    pipe = without_reader()
    process = start("-m", "conformance", *LINES["conformance"].short_run.split(), stdout=pipe)
    os.close(pipe)
    assert (141, "", "") == ended(process)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written(unbuffered: str, tmp_path: Path) -> None:
    pipe = without_reader()
    process = start_toy(tmp_path, "print('x')", stdout=pipe, PYTHONUNBUFFERED=unbuffered)
    os.close(pipe)
    assert (141, "", "") == ended(process)
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            process = start_toy(
                tmp_path, "print('x')", stdout=full.fileno(), PYTHONUNBUFFERED=unbuffered
            )
            line = "python -m toy: cannot write: No space left on device\n"
            assert (1, "", line) == ended(process)


@pytest.mark.parametrize(
    "body",
    [
        "interrupt(); time.sleep(9)",
        "raise sys.exit(interrupt())",
        "try: interrupt(); time.sleep(9)\n    except KeyboardInterrupt: pass",
        "try: interrupt(); time.sleep(9)\n    except KeyboardInterrupt: raise ValueError",
        "try: interrupt(); time.sleep(9)\n    finally: interrupt(); time.sleep(9)",
    ],
    ids=["plain", "while it ends", "caught", "turned into another", "twice"],
)
def test_ctrl_c_during_main(body: str, tmp_path: Path) -> None:
    assert (130, "", "python -m toy: interrupted\n") == ended(start_toy(tmp_path, body))


def test_a_lost_ctrl_c_ends_the_conformance_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import ctypes, os, signal\n"
        "@ctypes.CFUNCTYPE(None)\n"
        "def callback():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(10**6): pass\n"
        "def pytest_runtest_teardown():\n"
        "    callback()\n",
        encoding="utf-8",
    )
    arguments = LINES["conformance"].short_run.split()
    conftest = f"--confcutdir={tmp_path}"
    process = start(
        *("-m", "conformance", *arguments, conftest, "-p", "conftest", "-W", "ignore", "-q"),
        *("-n", "0"),  # so that the signal reaches the process that runs the tests
        PYTHONPATH=str(tmp_path),
    )
    status, out, err = ended(process)
    assert (130, 1) == (status, err.count("python -m conformance: interrupted\n")), out + err
    assert "1 passed" in out


def test_characters_that_ascii_lacks(tmp_path: Path) -> None:
    body = r"print('3 \u00b5s \u2192 \u2502')"
    assert (3, "3 ?s ? ?\n", "") == ended(start_toy(tmp_path, body, **ASCII))
    assert (3, "3 µs → │\n", "") == ended(start_toy(tmp_path, body, PYTHONUTF8="1"))


def test_the_list_is_whole() -> None:
    found = {"conformance"}
    for path in sorted((ROOT / "tools").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^ *run(_command)?\(\"", text, re.MULTILINE):
            is_installed = path.is_relative_to(COMMANDS_FOLDER)
            root = COMMANDS_FOLDER if is_installed else ROOT
            dotted = ".".join(path.relative_to(root).with_suffix("").parts)
            found.add(dotted.removesuffix(".__main__"))
        elif '__name__ == "__main__"' in text:  # each is started by another module or script
            assert path.name in {"gpu_versions.py", "runner.py"}
    found.remove("tools.gpu_versions")  # it fails without a GPU, as intended
    assert set(LINES) == found
    assert set(COMMANDS) <= {name.removeprefix("kvtwin.") for name in LINES}
