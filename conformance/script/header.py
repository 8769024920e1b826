"""How a script begins: what it is, what it imports, and from where."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from types import ModuleType

import reference
from conformance.targets import Target

STANDARD = ("itertools", "re", "sys", "base64", "zlib", "json")
"""What a script may need of the standard library."""


def folder_of(module: ModuleType) -> str | None:
    """Return what must be on `sys.path` for a module, None where it is installed."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    if path.name == "__init__.py":
        path = path.parent
    folder = path.parents[module.__name__.count(".")]
    installed = {Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib", "stdlib")}
    return None if folder in installed else str(folder)


def module_of(target: Target) -> ModuleType:
    """Return the module under test, where an adapter stands in its place, too."""
    return target.implementation.module


def is_importable(module: ModuleType) -> bool:
    """Tell whether an `import` finds a module by its name: not one of a file such as `a-b.py`."""
    path = Path(getattr(module, "__file__", None) or f"{module.__name__}.py")
    stem = path.parent.name if path.stem == "__init__" else path.stem
    return module.__name__.rpartition(".")[2] == stem


def _imported_by_file(module: ModuleType) -> list[str]:
    """Return the lines that import a module as `impl` from its file."""
    return [
        "import importlib.util",
        f"spec = importlib.util.spec_from_file_location({module.__name__!r}, {module.__file__!r})",
        "impl = sys.modules[spec.name] = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(impl)",
    ]


def imports(body: str, target: Target, own: list[str]) -> list[str]:
    """Return the lines that import what a script uses.

    Args:
        body: The rest of the script.
        target: What is under test; its module is called `impl`.
        own: What is imported of the harness.
    """
    standard = [name for name in STANDARD if f"{name}." in body]
    module = module_of(target)
    lines = [f"import {', '.join(['sys', *(n for n in standard if n != 'sys')])}"]
    if "SimpleNamespace(" in body:
        lines.append("from types import SimpleNamespace")
    packages = ["ml_dtypes", "numpy as np", "torch"]
    if "float8" not in body and "bfloat16" not in body:
        packages.remove("ml_dtypes")
    used = [name for name in packages if name == "ml_dtypes" or f"{name.split()[-1]}." in body]
    if used:
        lines.append(f"import {', '.join(used)}")
    folders = dict.fromkeys(filter(None, map(folder_of, (reference, module))))
    if folders:
        lines.append(f"sys.path[:0] = {list(folders)}")
    names = ["reference"] if re.search(r"\breference\b", body) else []
    uses_impl = re.search(r"\bimpl\b", body) is not None
    if uses_impl and is_importable(module):
        names.append(f"{module.__name__} as impl")
    if names:
        lines.append(f"import {', '.join(names)}")
    if uses_impl and not is_importable(module):
        lines += _imported_by_file(module)
    return lines + own
