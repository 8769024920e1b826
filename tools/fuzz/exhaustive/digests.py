"""Digests of the code that a comparison depends on."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

import conformance
import reference
from conformance.targets import Target


def code_digests(targets: Iterable[Target]) -> dict[str, str]:
    """Return a digest of all that decides what a case compares: code, versions of packages."""
    parts = {
        "reference": Path(reference.__file__).parent,
        "conformance": Path(conformance.__file__).parent,
        "tools.fuzz.exhaustive": Path(__file__).parent,
    }
    for target in targets:
        file = Path(target.implementation.file)
        is_package = file.name == "__init__.py"
        parts[target.implementation.name] = file.parent if is_package else file
    found = {name: _digest(path) for name, path in parts.items()}
    found["python"] = platform.python_version()
    return {**found, "numpy": np.__version__, "torch": str(torch.__version__)}


def _digest(path: Path) -> str:
    """Return a digest of a Python file, or of all Python files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        name = file.relative_to(path.parent)
        if "failures" not in name.parts:  # scripts that failing conformance runs leave there
            digest.update(str(name).encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
