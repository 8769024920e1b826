"""What is mutated, and what checks it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import grimp


@dataclasses.dataclass(frozen=True)
class Project:
    """A package, and the package with its checks.

    Attributes:
        root: The folder that both are in, which is on `sys.path`.
        package: What is mutated.
        checks: Its modules named `test_...` have the checks.
        others: Packages of the folder that import these, or that they import.
    """

    root: Path
    package: str = "fast"
    checks: str = "conformance"
    others: tuple[str, ...] = ("reference", "tools.bugs")

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
