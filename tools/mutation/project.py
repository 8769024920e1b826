"""What is mutated, what checks it, and which of its modules use which."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NO_SOURCES: Final = ("__pycache__", "failures")
"""Folders in which runs leave things."""


@dataclasses.dataclass(frozen=True)
class Project:
    """A package, and the package with its checks.

    Attributes:
        root: The folder that both lie in.
        package: What is mutated.
        checks: Its modules named `test_...` have the checks.
        others: Packages of the folder that the checks use.
    """

    root: Path
    package: str = "fast"
    checks: str = "conformance"
    others: tuple[str, ...] = ("reference",)

    def modules(self) -> dict[str, Path]:
        """Return the files of the package's modules, by name inside it: `kernels.cuda`."""
        folder = self.root / self.package
        files = sorted(folder.rglob("*.py"))
        named = {".".join(file.relative_to(folder).with_suffix("").parts): file for file in files}
        return {name: file for name, file in named.items() if not name.endswith("__init__")}

    def copied_to(self, folder: Path) -> Project:
        """Copy the project, so that it stays what it is for as long as a run takes.

        Args:
            folder: Where to; what was there is lost.

        Returns:
            The copy.
        """
        shutil.rmtree(folder, ignore_errors=True)
        for package in (self.package, self.checks, *self.others):
            leave = shutil.ignore_patterns(*NO_SOURCES)
            shutil.copytree(self.root / package, folder / package, ignore=leave)
        return dataclasses.replace(self, root=folder)

    def digest(self) -> str:
        """Return what changes with any of the sources that a outcome rests on."""
        digest = hashlib.sha256()
        for package in (self.package, self.checks, *self.others):
            for file in sorted((self.root / package).rglob("*")):
                name = file.relative_to(self.root)
                if file.is_file() and not set(NO_SOURCES) & set(name.parts):
                    digest.update(f"{name}\0".encode() + file.read_bytes())
        return digest.hexdigest()[:32]

    def users(self) -> dict[str, frozenset[str]]:
        """Return, for each module of the package, itself and those that import it, however far."""
        files = self.modules()
        begin = f"{self.package}."
        imported = {
            begin + name: {n for n in find_imports(file) if n.removeprefix(begin) in files}
            for name, file in files.items()
        }
        users = {
            name: {user.removeprefix(begin) for user in _reaching({begin + name}, imported)}
            for name in files
        }
        return {name: frozenset(found) for name, found in users.items()}

    def independent(self) -> frozenset[str]:
        """Return the modules, outside the package, that import nothing of it, however far."""
        imported: dict[str, set[str]] = {}
        for package in (self.package, self.checks, *self.others):
            for file in sorted((self.root / package).rglob("*.py")):
                parts = file.relative_to(self.root).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                imported[name] = find_imports(file) | _with_packages(name) - {name}
        mutable = {name for name in imported if name.split(".", maxsplit=1)[0] == self.package}
        return frozenset(imported.keys() - _reaching(mutable, imported))


def find_imports(file: Path) -> set[str]:
    """Return what a module may import when it is imported: modules, their packages, and names."""
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            left += node.orelse
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found.update(*map(_with_packages, names))
        left += ast.iter_child_nodes(node)
    return found


def _with_packages(name: str) -> set[str]:
    """Return a dotted name and all that it begins with.

    >>> sorted(_with_packages("a.b.c"))
    ['a', 'a.b', 'a.b.c']
    """
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def _reaching(names: set[str], imported: Mapping[str, set[str]]) -> set[str]:
    """Return some modules and those that import one of them, however far."""
    found = set(names)
    grows = True
    while grows:
        more = {user for user, names in imported.items() if names & found} - found
        found |= more
        grows = bool(more)
    return found
