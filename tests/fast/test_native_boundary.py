"""Low-level code stays inside `fast/_native`: scans the source of every other module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fast
from fast._native.compiler import COMPILED

ROOT = Path(fast.__file__).parent
OUTSIDE = sorted(
    path for path in ROOT.rglob("*.py") if "_native" not in path.relative_to(ROOT).parts
)
COMPARED = {"direct_launch.py", "kv_views.py", "row_moves.py"}
"""Modules that take an address on any device, but read nothing there: for a launch, or to check
alignment or overlap."""

TYPES = {"Int", "Int32s", "Int64s"}
"""The annotations of the parameters of kernels and loops."""


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield all names and attributes in the source of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_loop_and_no_address_outside(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set(names_in(tree))
    tricks = {"address_of", "int32s_at", "int64s_at", "marshal", "entry_point", "carray", "ctypes"}
    if path.name not in COMPARED:
        tricks.add("data_ptr")
    loops = {loop.py_func.__name__ for loop in COMPILED} - {"compute_slot_mapping"}
    assert set() == names & tricks
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fast._native"):
            imported = {alias.name for alias in node.names}
            if node.module == "fast._native.compiler":
                assert imported <= TYPES | {"compile_loops"}
            assert set() == imported & loops


def test_the_scan_sees_loops() -> None:
    assert len(COMPILED) >= 20
    assert len(OUTSIDE) > 60
