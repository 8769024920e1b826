"""The package: its names, its imports, and the examples in its docstrings."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import reference.backend
import reference.block_table
import reference.fast_prefill
import reference.metadata_validation
import reference.multimodal

MODULES = sorted(module.name for module in pkgutil.iter_modules(reference.__path__))


def test_names() -> None:
    assert len(reference.__all__) == len(set(reference.__all__))
    for name in reference.__all__:
        assert hasattr(reference, name), name


def test_imports_without_torch_or_numba() -> None:
    blocked = ("torch", "numba", "fast", "conformance", "hypothesis", "pytest")
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import importlib, pkgutil, reference\n"
        "for module in pkgutil.iter_modules(reference.__path__):\n"
        "    importlib.import_module(f'reference.{module.name}')\n"
        "import numpy as np\n"
        "print(reference.map_to_kernel_blocks(np.array([0, 3]), 2))\n"
    )
    root = Path(reference.__file__).parents[1]
    result = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert ("[0 1 6 7]\n", "") == (result.stdout, result.stderr)


@pytest.mark.parametrize("name", ["__init__", *MODULES])
def test_doctests(name: str) -> None:
    module = importlib.import_module(f"reference.{name}" if name != "__init__" else "reference")
    assert doctest.testmod(module).failed == 0


def test_every_field_of_a_metadata_is_checked() -> None:
    checked = list(reference.metadata_validation.FIELDS)
    fields = dataclasses.fields(reference.CommonAttentionMetadata)
    assert [field.name for field in fields] == checked


MODULES_OF_THE_FIELD = {
    "backend": reference.backend.__all__,
    "block_table": (
        *("PAD_SLOT_ID", "NULL_BLOCK_ID", "compute_slot_mapping", "map_to_kernel_blocks"),
    ),
    "fast_prefill": ("KVSharingFastPrefillMetadata", "create_fast_prefill_custom_backend"),
    "multimodal": reference.multimodal.__all__,
}


@pytest.mark.parametrize("module", MODULES_OF_THE_FIELD)
def test_names_of_the_fields_modules(module: str) -> None:
    for name in MODULES_OF_THE_FIELD[module]:
        assert getattr(reference, name) is getattr(getattr(reference, module), name)
