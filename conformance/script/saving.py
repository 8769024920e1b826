"""Where scripts are kept: `conformance/failures/`, a file for each test that failed."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.folders import folder_for

FAILURES = Path(__file__).resolve().parents[1] / "failures"
"""The folder beside the harness, where that can be written."""


def script_path(name: str, directory: Path | None = None) -> Path:
    """Return the file of a test's script.

    Args:
        name: The test; what no file name should have becomes a dash.
        directory: The folder; None for `conformance/failures/`, or, where the package is installed
            or cannot be written to, for a `conformance-failures` in the working directory.

    >>> script_path("test_x-test_f[host-minimal]", Path("failures")).as_posix()
    'failures/test_x-test_f-host-minimal.py'
    """
    if directory is None:
        directory = folder_for(FAILURES)
    return directory / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name).strip('-.')}.py"


def save_script(script: str, name: str, directory: Path | None = None) -> Path:
    """Write a script to a file, which replaces that of an earlier run.

    Args:
        script: It.
        name: The test that failed.
        directory: The folder, as `script_path` has it.

    Returns:
        The file.
    """
    path = script_path(name, directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    return path
