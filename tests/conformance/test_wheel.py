"""The wheel, from an empty folder: what it has, and that a failure is stored and replayed there.

`.ci/package` runs its command lines with no package but those that it names.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WRONG = """
import fast
from fast import *

def slice_query_start_locs(*args, **keywords):
    return fast.slice_query_start_locs(*args, **keywords).long()
"""
FEW = (
    *("--functions", "slice_query_start_locs", "--profile", "dev", "--target", "host"),
    *("--tb=no", "--strict"),
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python of a new environment with the wheel and the packages of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", REPOSITORY, "--no-deps", "--quiet", "-w", folder]
    built = subprocess.run(  # noqa: S603  # our own wheel
        [*build, "--retries", "0", "--timeout", "10"], capture_output=True, text=True, check=False
    )
    if built.returncode:
        line = (built.stderr.strip().splitlines() or ["nothing said"])[-1]
        pytest.skip(f"pip cannot build a wheel here, which needs hatchling: {line}")
    venv.create(folder / "venv")
    place = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    site = Path(sysconfig.get_path("purelib", "venv", vars=place))
    # Python finds the packages there, but does not read their .pth files: one adds this repository.
    (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    [wheel] = folder.glob("*.whl")
    shutil.unpack_archive(wheel, site, "zip")
    return str(folder / "venv" / "bin" / "python")


def run(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "conformance", *arguments]
    return subprocess.run(  # noqa: S603  # our own wheel
        command, capture_output=True, text=True, cwd=folder, check=False
    )


def test_four_typed_packages_and_a_command(python: str, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import distribution\n"
        "found = distribution('kvtwin')\n"
        "print(*sorted({file.parts[0] for file in found.files if '.' not in file.parts[0]}))\n"
        "print(*sorted(file.parts[0] for file in found.files if file.name == 'py.typed'))\n"
        "print(*(f'{point.name}={point.value}' for point in found.entry_points))\n"
    )
    ran = subprocess.run(  # noqa: S603  # our own wheel
        [python, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    packages = "conformance fast kvtwin reference"
    assert [
        packages,
        packages,
        "kvtwin=kvtwin.commands:main kvtwin=conformance.pytest_plugin",
    ] == ran.stdout.splitlines()


def test_a_failure_is_stored_and_replayed_first(python: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    found = run(python, tmp_path, "--impl", "./mine.py", "--corpus-add", "-q", *FEW)
    assert 1 == found.returncode, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    line = "other difference: slice_query_start_locs on host: result.dtype = int64, "
    at = lines.index(f"{line}but should be int32")
    assert "--replay conformance-corpus/slice_query_start_locs-" in lines[at + 1]
    replay = shlex.split(lines[at + 1].removeprefix("  replay: python -m conformance "))
    assert 1 == run(python, tmp_path, *replay, "--strict").returncode
    stored = {path.stem for path in (tmp_path / "conformance-corpus").iterdir()}
    again = run(python, tmp_path, "--impl", "./mine.py", "-v", "-n", "0", *FEW)
    [first, *_] = [line for line in again.stdout.splitlines() if "-host]" in line]
    assert first.partition("::")[2].partition("[stored-host] FAILED")[0] in stored
