"""The logic of `tools/gpu_check.sh`: sections, limits, logs, the table, the exit status.

Fake commands replace Python, nvcc, nvidia-smi and compute-sanitizer.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tools import gpu_versions

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tools" / "gpu_check.sh").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("timeout") is None,
    reason="the script takes bash and timeout",
)

SECTIONS = [
    *("versions", "device-path", "bench", "conformance"),
    *("native", "real-models", "sanitizer", "kernels"),
]

SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZED = (*SANITIZER_TOOLS, "memcheck-conformance")
PYTHON = """#!/bin/sh
case "$*" in
    *torch.cuda.is_available*) echo "$GPU" ;;
    *tools.gpu_versions*)
        echo "launcher: direct"
        echo "warmup() ok: 9.1 s" ;;
    *"$BREAKS"*) echo "1 failed in 2s"; exit 1 ;;
    *"$HANGS"*) sleep 60 ;;
    *tests/gpu*)
        for i in 1 2 3 4 5 6 7 8 9 10; do echo "$i"; echo; echo; echo; echo; done
        echo ".host cost of a launch, direct: 4.0 us"; echo "5 passed in 3s" ;;
    *) echo "9 passed in 4s" ;;
esac
"""
SANITIZER = """#!/bin/sh
echo "ERROR SUMMARY: 0 errors for $*, caching off: ${PYTORCH_NO_CUDA_MEMORY_CACHING:-no}"
"""


class Done(NamedTuple):
    """A run of the script: its status, the table's rows by name, its output, its logs by name."""

    status: int
    rows: dict[str, str]
    printed: str
    logs: dict[str, str]


def run(folder: Path, *sections: str, text: str = "", **settings: str) -> Done:
    """Run the script with its text, or another, beside fake commands that `settings` control."""
    programs = folder / "bin"
    programs.mkdir()
    commands = {"python3": PYTHON, "nvidia-smi": "#!/bin/sh\necho 580\n"}
    if settings.pop("sanitizer", ""):
        commands["compute-sanitizer"] = SANITIZER
    for name, content in commands.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    script = folder / "tools" / "gpu_check.sh"
    script.parent.mkdir()
    script.write_text(text or TEXT)
    chosen = {"GPU": "H200", "BREAKS": "nothing", "HANGS": "nothing", "OUT": str(folder / "logs")}
    inherited = {name: value for name, value in os.environ.items() if "CUDA" not in name}
    path = f"{programs}:/usr/bin:/bin"
    done = subprocess.run(  # noqa: S603  # our own
        ["/usr/bin/env", "bash", script, *sections],
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, "PATH": path, **chosen, **settings},
    )
    table = done.stdout.partition("\ngpu_check, ")[2]
    found = re.findall(
        r"^([\w-]+) +(ok|-|FAILS|TIMEOUT|no GPU|no time) +\d+s  (.*)$", table, re.MULTILINE
    )
    rows = {name: f"{state}: {said}" for name, state, said in found}
    logs = {log.name: log.read_text() for log in (folder / "logs").glob("*")}
    return Done(done.returncode, rows, done.stdout + done.stderr, logs)


def test_all_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path, sanitizer="yes")
    assert 50 < done.logs["device-path.log"].count("\n")
    assert {f"{section}.log" for section in SECTIONS} | {"gpu_check.txt"} == set(done.logs)
    assert done.logs["gpu_check.txt"] in done.printed
    assert "ok: warmup() ok: 9.1 s" == done.rows.pop("versions")
    for name in SANITIZED:
        tool = name.partition("-")[0]
        said = done.rows.pop(name)
        options = "--report-api-errors no --error-exitcode 1 python3 -m pytest"
        assert said.startswith(f"ok: ERROR SUMMARY: 0 errors for --tool {tool} {options}")
        is_conformance = name not in SANITIZER_TOOLS
        assert ("conformance/functions/slots.py" in said) == is_conformance
        assert ("multimodal.py, caching off: 1" in said) == is_conformance
        assert said.removeprefix("ok: ") in done.logs["sanitizer.log"]
    by_pytest = dict.fromkeys(("device-path", "native"), "ok: 5 passed in 3s")
    others = ("bench", "conformance", "kernels", "real-models")
    assert by_pytest | dict.fromkeys(others, "ok: 9 passed in 4s") == done.rows
    assert "--target cuda -n 12\n" in done.printed
    assert re.search(
        r"\ngpu_check, \d{4}-\d\d-\d\d, H200, driver 580, \d+s, logs in ", done.printed
    )
    assert done.printed.endswith("\nlauncher: direct\nhost cost of a launch, direct: 4.0 us\n")
    assert done.status == 0


@pytest.mark.parametrize(
    ("sections", "settings", "rows", "status"),
    [
        (
            ["kernels", "conformance"],
            {"GPU_CHECK_WORKERS": "3"},
            {"kernels": "ok: 9 passed in 4s", "conformance": "ok: 9 passed in 4s"},
            0,
        ),
        (
            ["bench", "real-models"],
            {"BREAKS": "kvtwin bench"},
            {"bench": "FAILS: 1 failed in 2s", "real-models": "ok: 9 passed in 4s"},
            1,
        ),
        (
            ["bench", "real-models"],
            {"HANGS": "kvtwin bench"},
            {"bench": "TIMEOUT", "real-models": "ok: 9 passed in 4s"},
            1,
        ),
        (
            ["real-models"],
            {"GPU": ""},
            {"real-models": "no GPU: python3 -m tools.runner --device cuda"},
            1,
        ),
        (
            ["native", "real-models"],
            {"GPU_CHECK_SECONDS": "9"},
            {"native": "no time: python3", "real-models": "no time: python3"},
            1,
        ),
        (["sanitizer"], {}, {"sanitizer": "-: compute-sanitizer is not installed here"}, 0),
    ],
)
def test_what_sections_say(
    sections: list[str],
    settings: dict[str, str],
    rows: dict[str, str],
    status: int,
    tmp_path: Path,
) -> None:
    if sections == ["sanitizer"] and Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        pytest.skip("it is installed here")
    assert TEXT.count("check bench 150 ") == 1
    begin = time.monotonic()
    done = run(
        tmp_path, *sections, text=TEXT.replace("check bench 150 ", "check bench 2 "), **settings
    )
    assert time.monotonic() - begin < 20
    assert [*rows] == [*done.rows]
    assert all(done.rows[name].startswith(said) for name, said in rows.items())
    assert status == done.status
    assert ("--target cuda -n 3\n" in done.printed) == ("conformance" in sections)


def test_what_matters_most_fits_in_ten_minutes() -> None:
    limits = {name: int(limit) for name, limit in re.findall(r"check ([\w-]+) (\d+) ", TEXT)}
    sanitized = dict(re.findall(r'sanitize "?\$?([\w-]+)"? (\d+) ', TEXT))
    assert {"tool", "memcheck-conformance"} == set(sanitized)
    each, conformance = int(sanitized["tool"]), int(sanitized["memcheck-conformance"])
    limits["sanitizer"] = len(SANITIZER_TOOLS) * each + conformance
    assert set(SECTIONS) == set(limits)
    assert sum(limits[name] for name in SECTIONS[:5]) < 570


def test_versions_on_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba_cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(gpu_versions.fast, "warmup", lambda: None)
    assert 0 == gpu_versions.main()
    printed = capsys.readouterr().out
    assert "\nH200, sm_90, CUDA " in printed
    assert re.search(r"\nnumba.cuda is .*/numba_cuda/numba/cuda/__init__.py\n", printed)
    assert re.search(r"\nlauncher: fast\.direct_launch\nwarmup\(\) ok: \d\.\d s\n$", printed)

    def warn() -> None:
        warnings.warn("kernels are not loaded", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr(gpu_versions.fast, "warmup", warn)
    with pytest.raises(RuntimeWarning, match="kernels are not loaded"):
        gpu_versions.main()
