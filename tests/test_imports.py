"""Imports: no cycle of modules."""

from __future__ import annotations

import graphlib

import pytest

grimp = pytest.importorskip("grimp", reason="it comes with import-linter: pip install '.[lint]'")


def packages_of(module: str) -> set[str]:
    """Return the parent packages of a module, whose `__init__` Python imports before it."""
    parts = module.split(".")
    return {".".join(parts[:number]) for number in range(1, len(parts))}


@pytest.mark.parametrize("package", ["reference", "fast", "conformance", "kvtwin"])
def test_imports_have_an_order(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    order: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name in graph.modules:
        imported = graph.find_modules_directly_imported_by(name)
        packages = set().union(*map(packages_of, imported))
        order.add(name, *imported, *(packages - packages_of(name) - {name}))
    order.prepare()  # CycleError names the modules of a cycle
    assert len(graph.modules) > 5
