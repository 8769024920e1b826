"""The package: what an import costs and compiles, and where low-level code and numba-cuda are."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import conformance
import fast
import kvtwin
from fast._native.compiler import COMPILED

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
    "imported": [name for name in ("numba", "torch._dynamo") if name in sys.modules],
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


def test_an_import_without_numba_cuda() -> None:
    run = subprocess.run(  # noqa: S603  (this file's own script)
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    probed = json.loads(run.stdout)
    assert probed.pop("seconds") < 0.3
    error = probed.pop("error")
    assert error.startswith("kernels need numba-cuda: pip install -e '.[cuda]'")
    assert {"imported": [], "compiled": [], "loaded": [], "slots": [11, 18, 19]} == probed


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the modules and names that a module imports or names in calls, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # for importlib


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield all names and attributes in the source of a module."""
    yield from (name.rpartition(".")[2] for name in imports_of(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def sources(package: ModuleType) -> Iterator[tuple[str, ast.Module]]:
    root = Path(package.__path__[0])
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


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
    pattern = re.compile(r"numba\.cuda(\..*)?|numba_cuda(\..*)?")
    importing = [
        name for name, tree in sources(package) if any(map(pattern.fullmatch, imports_of(tree)))
    ]
    assert expected == importing


COMPARED = {"direct_launch.py", "kv_views.py", "row_moves.py"}
"""Modules that take an address on any device, but read nothing there: for a launch, or to check
alignment or overlap."""

TYPES = {"Int", "Int32s", "Int64s"}
"""The annotations of the parameters of kernels and loops."""


def test_no_loop_and_no_address_outside_native() -> None:
    loops = {loop.py_func.__name__ for loop in COMPILED} - {"compute_slot_mapping"}
    tricks = {"address_of", "int32s_at", "int64s_at", "marshal", "entry_point", "carray", "ctypes"}
    outside = {name: tree for name, tree in sources(fast) if not name.startswith("_native/")}
    assert len(loops) >= 20
    assert len(outside) > 40
    for name, tree in outside.items():
        forbidden = tricks if name in COMPARED else {*tricks, "data_ptr"}
        assert set() == set(names_in(tree)) & forbidden, name
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fast._native"):
                imported = {alias.name for alias in node.names}
                if node.module == "fast._native.compiler":
                    assert imported <= TYPES | {"compile_loops"}, name
                assert set() == imported & loops, name
