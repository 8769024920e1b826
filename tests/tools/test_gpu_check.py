"""What `tools/gpu_check.sh` does of itself: sections, limits, the table, the exit status.

Commands of the tests' own stand in for Python, for the driver's tool and for compute-sanitizer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu_check.sh"

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("timeout") is None,
    reason="the script takes bash and timeout",
)

PYTHON = """#!/bin/sh
case "$*" in
    *torch.cuda.is_available*) echo "$GPU" ;;
    *importlib.metadata*) echo "Python 3.12" ;;
    *"$BREAKS"*) echo "1 failed in 2s"; exit 1 ;;
    *"$HANGS"*) sleep 60 ;;
    *tests/gpu*) echo ".host cost of a launch, direct: 4.0 us"; echo "5 passed in 3s" ;;
    *) echo "9 passed in 4s" ;;
esac
"""
SANITIZER = """#!/bin/sh
echo "ERROR SUMMARY: 0 errors for $2"
"""


def run(folder: Path, **settings: str) -> tuple[int, dict[str, str], str]:
    """Run the script; return its exit status, the table's rows by name, and all it printed."""
    commands = {"python3": PYTHON, "nvidia-smi": "#!/bin/sh\necho 580\n"}
    if settings.pop("sanitizer", ""):
        commands["compute-sanitizer"] = SANITIZER
    for name, text in commands.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    chosen = {"GPU": "H200", "BREAKS": "nothing", "HANGS": "nothing", **settings}
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin", **chosen}
    done = subprocess.run(  # noqa: S603  # our own
        ["/usr/bin/env", "bash", SCRIPT, "3"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    table = done.stdout.partition("\ngpu_check, ")[2]
    rows = re.findall(
        r"^([\w-]+) +(ok|-|FAILS|TIMEOUT|no GPU|no time) +\d+s  (.*)$", table, re.MULTILINE
    )
    return done.returncode, {name: f"{state}: {said}" for name, state, said in rows}, done.stdout


def test_all_is_shown(tmp_path: Path) -> None:
    """Where every section succeeds each has a row, figures stand below, and the status is 0."""
    status, rows, printed = run(tmp_path, sanitizer="yes")
    assert {
        "device-path": "ok: 5 passed in 3s",
        "bench": "ok: 9 passed in 4s",
        "conformance": "ok: 9 passed in 4s",
        "memcheck": "ok: ERROR SUMMARY: 0 errors for memcheck",
        "racecheck": "ok: ERROR SUMMARY: 0 errors for racecheck",
        "kernels": "ok: 9 passed in 4s",
        "real-models": "ok: 9 passed in 4s",
    } == rows
    assert "=== conformance, at most 170s: python3 -m pytest" in printed
    assert "--target host,cuda -n 3\n" in printed
    assert re.search(r"\ngpu_check, \d{4}-\d\d-\d\d, H200, driver 580, \d+s\n", printed)
    assert printed.endswith("\nhost cost of a launch, direct: 4.0 us\n")
    assert status == 0


def test_a_failure_fails(tmp_path: Path) -> None:
    """A section that fails has its row say so, the others run, and the status is 1."""
    status, rows, _ = run(tmp_path, BREAKS="tools.bench")
    assert "FAILS: 1 failed in 2s" == rows["bench"]
    assert "ok: 9 passed in 4s" == rows["real-models"]
    assert status == 1


def test_without_compute_sanitizer(tmp_path: Path) -> None:
    """Where compute-sanitizer is not installed that is said, and is no failure."""
    if Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("it is installed here")
    status, rows, _ = run(tmp_path)
    assert "-: compute-sanitizer is not installed here" == rows["memcheck"] == rows["racecheck"]
    assert status == 0


def test_what_hangs_is_killed(tmp_path: Path) -> None:
    """A section that hangs ends with the time there is, and the rest say that none is left."""
    begin = time.monotonic()
    status, rows, _ = run(tmp_path, HANGS="tools.bench", GPU_CHECK_SECONDS="3")
    assert time.monotonic() - begin < 20
    states = {name: said.partition(":")[0] for name, said in rows.items()}
    assert "ok" == states["device-path"]
    assert "TIMEOUT" == states["bench"]
    assert "no time" == states["conformance"] == states["kernels"] == states["real-models"]
    assert status == 1


def test_without_a_gpu(tmp_path: Path) -> None:
    """Where there is no GPU nothing is run, each section says so, and the status is 1."""
    status, rows, printed = run(tmp_path, GPU="", sanitizer="yes")
    assert {"no GPU"} == {said.partition(":")[0] for said in rows.values()}
    assert 7 == len(rows)
    assert "no GPU: python3 -m tools.runner --device cuda" == rows["real-models"]
    assert "===" not in printed
    assert status == 1


def test_all_limits_fit_into_eight_minutes() -> None:
    """The time for all is under 8 minutes, with what killing and the table take."""
    seconds = re.search(r"GPU_CHECK_SECONDS:-(\d+)", SCRIPT.read_text())
    assert seconds is not None
    assert int(seconds[1]) + 10 < 8 * 60
