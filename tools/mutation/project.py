"""The project under mutation: the mutated package, and the package with its checks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import grimp


@dataclasses.dataclass(frozen=True)
class Project:
    """A package, and the package with its checks.

    Attributes:
        root: The folder of both, which is on `sys.path`.
        package: The package to mutate.
        checks: The package with the checks, in its modules named `test_...`.
        others: Packages of the folder that import these, or that these import.
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
        """Return, for each module, the set of itself and all its direct and indirect importers."""
        graph = grimp.build_graph(self.package, cache_dir=None, exclude_type_checking_imports=True)
        names = {f"{self.package}.{name}": name for name in self.modules()}
        return {
            name: frozenset(
                {names[user] for user in graph.find_downstream_modules(path) & names.keys()}
                | {name}
            )
            for path, name in names.items()
        }
