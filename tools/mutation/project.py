"""What is mutated, and what checks it."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grimp

LEFT_BY_RUNS: Final = ("__pycache__", "failures")
"""Folders that are no sources."""


@dataclasses.dataclass(frozen=True)
class Project:
    """A package, and the package with its checks.

    Attributes:
        root: The folder that both are in, which is on `sys.path`.
        package: What is mutated.
        checks: Its modules named `test_...` have the checks.
        others: Packages of the folder that the checks use.
    """

    root: Path
    package: str = "fast"
    checks: str = "conformance"
    others: tuple[str, ...] = ("reference",)

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages of the project."""
        return self.package, self.checks, *self.others

    def modules(self) -> dict[str, Path]:
        """Return the files of the package's modules, by name inside it: `kernels.cuda`."""
        folder = self.root / self.package
        files = sorted(folder.rglob("*.py"))
        named = {".".join(file.relative_to(folder).with_suffix("").parts): file for file in files}
        return {name: file for name, file in named.items() if not name.endswith("__init__")}

    def users(self) -> dict[str, frozenset[str]]:
        """Return each module of the package with itself and all that import it, indirectly too."""
        graph = grimp.build_graph(self.package, cache_dir=None, exclude_type_checking_imports=True)
        names = {f"{self.package}.{name}": name for name in self.modules()}
        return {
            name: frozenset(
                {names[user] for user in graph.find_downstream_modules(path) & names.keys()}
                | {name}
            )
            for path, name in names.items()
        }

    def copied_to(self, folder: Path) -> Project:
        """Return a copy in a folder, so that changes during a run of hours do not matter."""
        shutil.rmtree(folder, ignore_errors=True)
        for package in self.packages:
            left_out = shutil.ignore_patterns(*LEFT_BY_RUNS)
            shutil.copytree(self.root / package, folder / package, ignore=left_out)
        return dataclasses.replace(self, root=folder)

    def digest(self) -> str:
        """Return a digest of all sources."""
        digest = hashlib.sha256()
        for file in self._files():
            digest.update(f"{file.relative_to(self.root)}\0".encode() + file.read_bytes())
        return digest.hexdigest()[:32]

    def _files(self) -> Iterator[Path]:
        for package in self.packages:
            for file in sorted((self.root / package).rglob("*")):
                if file.is_file() and not set(LEFT_BY_RUNS) & set(file.parts):
                    yield file
