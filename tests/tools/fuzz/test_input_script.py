"""A failure that was not minimized has a script too, which draws its input again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.fuzz.nights import PLANTED, ROOT, SECONDS
from tools.fuzz.cases import Input
from tools.fuzz.failures import Failure
from tools.fuzz.input_script import with_script
from tools.fuzz.properties import Subject, properties_of

SUBJECT = Subject((str(PLANTED),), target="host", functions="map_to_kernel_blocks")


def failure(data: bytes, script: str | None = None) -> Failure:
    """Return a failure of an input."""
    line = 'a "quoted" \\ """line"""'
    return Failure("f", "host", "p", "law", "", "E", line, input=data, script=script)


def run(script: str | None, folder: Path, bugs: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, with planted bugs."""
    path = folder / "script.py"
    path.write_text(str(script), encoding="utf-8")
    return subprocess.run(  # noqa: S603  # our own
        [sys.executable, path],
        env=os.environ | {"PLANTED_BUGS": bugs},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.usefixtures("forked_processes")
def test_it_shows_the_failure(tmp_path: Path) -> None:
    """It ends with status 1 and the error while the bug is there, and with 0 without it."""
    name = next(one for one in properties_of(SUBJECT) if one.endswith("map_to_kernel_blocks@host"))
    for seed in range(5):  # of which some ask for three kernel blocks
        script = with_script(failure(Input(name, seed).to_bytes()), SUBJECT).script
        found = run(script, tmp_path, "last block lost")
        if found.returncode:
            break
    assert 1 == found.returncode
    assert found.stderr.startswith("Mismatch: map_to_kernel_blocks on host: ")
    fixed = run(script, tmp_path, "none")
    assert (0, "") == (fixed.returncode, fixed.stderr)


@pytest.mark.parametrize("one", [failure(b"", None), failure(b"x", "print()\n")])
def test_it_stands_in_for_no_other(one: Failure) -> None:
    """A failure that was not drawn has none, and one that has a script keeps it."""
    assert with_script(one, SUBJECT) is one
