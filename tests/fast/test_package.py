"""Importing the package, in a fresh process if numba-cuda must be missing."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import conformance
import fast
import kvtwin

SCRIPT = """
import json, sys, time

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba_cuda", "hypothesis", "reference", "conformance"):
            return None
        if name == "numba.cuda" or name.startswith("numba.cuda."):
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
import torch
start = time.process_time()
import fast
seconds = time.process_time() - start
from fast._native.compiler import COMPILED
probed = {
    "seconds": seconds,
    "numba": "numba" in sys.modules,
    "dynamo": "torch._dynamo" in sys.modules,
    "compiled": [loop.py_func.__name__ for loop in COMPILED if loop._machine_code],
    "loaded": [kernel.name for kernel in fast.kernels.cuda.KERNELS if kernel.loaded],
}
table = torch.tensor([[5, 9]], dtype=torch.int32)
starts = torch.tensor([0, 3], dtype=torch.int32)
probed["slots"] = fast.compute_slot_mapping(table, starts, torch.arange(1, 4), 2).tolist()
fast.warmup()
try:
    fast.launch.launcher()
except ImportError as error:
    probed["error"] = str(error)
print(json.dumps(probed))
"""


@pytest.fixture(scope="module")
def probed() -> Any:  # noqa: ANN401  (what JSON holds)
    """Import `fast` in a fresh process and return its measurements."""
    run = subprocess.run(  # noqa: S603  (this file's own script)
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_imports_in_no_time(probed: dict[str, Any]) -> None:
    assert probed["seconds"] < 0.3
    assert not probed["numba"]
    assert not probed["dynamo"]


def test_imports_compile_nothing(probed: dict[str, Any]) -> None:
    assert probed["compiled"] == []
    assert probed["loaded"] == []


def test_host_path_without_numba_cuda(probed: dict[str, Any]) -> None:
    assert probed["slots"] == [11, 18, 19]


def test_device_path_without_numba_cuda(probed: dict[str, Any]) -> None:
    assert probed["error"].startswith("kernels need numba-cuda: pip install -e '.[cuda]'")


def imports_of(path: Path) -> set[str]:
    """Return the modules that a module imports or names in calls, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # for importlib
    return found


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        (fast, ["numba_cuda.py"]),
        # Compiles without a GPU, and checks whether numba-cuda is installed.
        (conformance, ["harness/targets.py", "native/compiled.py"]),
        (kvtwin, []),
    ],
)
def test_one_module_imports_numbas_cuda(package: ModuleType, expected: list[str]) -> None:
    root = Path(package.__path__[0])
    importing = [
        path.relative_to(root).as_posix()
        for path in sorted(root.rglob("*.py"))
        if any(
            re.fullmatch(r"numba\.cuda(\..*)?|numba_cuda(\..*)?", name) for name in imports_of(path)
        )
    ]
    assert expected == importing
