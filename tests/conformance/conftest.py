"""Makes the modules next to the tests importable, and runs repro scripts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package
torch.set_num_threads(1)  # as `conformance.conftest` does

RunScript = Callable[[Path], subprocess.CompletedProcess[str]]


@pytest.fixture
def run_script() -> RunScript:
    """Return a function that runs a script and returns the completed process."""

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, path]
        return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ours

    return run
