"""No two modules import each other, directly or by way of others."""

from __future__ import annotations

import graphlib

import pytest

grimp = pytest.importorskip("grimp", reason="it comes with import-linter: pip install '.[lint]'")


@pytest.mark.parametrize("package", ["reference", "fast", "conformance", "tools"])
def test_imports_have_an_order(package: str) -> None:
    """Imports for annotations and inside functions count too; a package stands for its module."""
    graph = grimp.build_graph(package)
    sorter = graphlib.TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    )
    sorter.prepare()  # raises CycleError, which names the modules
    assert len(graph.modules) > 20
