"""Stored cases as checks, of which the plugin can make tests."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

from conformance.encoding import SCHEMA_VERSION, to_text
from conformance.encoding.elements import Json
from conformance.goals import COVERAGE
from conformance.profiles import Kind, Profile
from conformance.targets import Target


@dataclasses.dataclass(frozen=True)
class CaseCheck:
    """One stored case, as a check: it is collected and bound as a `Check` is.

    Attributes:
        function: The function that it is about, as the closing table names it.
        name: What its test is called: `compute_slot_mapping/answer-003`.
        kind: What it looks at.
        description: What is particular about it.
        body: Raises where a target contradicts it.
        path: The file; None for what is in no file.
        goals: coverage goals of a run; none, for a case is what it is.
        has_kernel: Whether it must launch a kernel in the simulator; nobody knows of one case.
        law: The name of a law; none.
    """

    function: str
    name: str
    kind: Kind
    description: str
    body: Callable[[Target], None]
    path: Path | None = None
    goals: tuple[str, ...] = ()
    has_kernel: bool = False
    law: str = ""

    def sizes(self, target: Target) -> list[str]:
        """Return the sizes of its examples: it is one case, as large as it is."""
        del target
        return ["stored"]

    def runs_on(self, target: Target) -> bool:
        """Return whether the case says anything on a target: it does on each."""
        del target
        return True

    def bind(
        self,
        target: Target,
        profile: Profile | None = None,
        size: str = "",
        *,
        shrink: bool = True,
    ) -> Callable[[], None]:
        """Return a test of this case on a target, a function of no arguments.

        Args:
            target: What is under test.
            profile: Of no matter, as what follows: a case is one example, as large as it is.
            size: Likewise.
            shrink: Likewise.
        """
        del profile, size, shrink

        def run() -> None:
            __tracebackhide__ = True
            COVERAGE.count(self.function, target.name, ())
            self.body(target)

        run.__name__ = run.__qualname__ = re.sub(r"\W", "_", self.name)
        run.__doc__ = self.description
        return run


def read_json(path: Path) -> Json:
    """Return what is in a file of this version of the schema.

    Raises:
        ValueError: A file that is not there, is not a JSON, or of another version.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    version = read.get("schema_version") if isinstance(read, dict) else None
    if not isinstance(version, str) or version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise ValueError(f"{path} is of schema {version}, but this is a reader of {SCHEMA_VERSION}")
    return read


def write_case(case: Json, path: Path) -> None:
    """Write a stored case to a file.

    Args:
        case: It, as `case_of_failure` gives it.
        path: The file, which is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text({"schema_version": SCHEMA_VERSION, **case}), encoding="utf-8")
