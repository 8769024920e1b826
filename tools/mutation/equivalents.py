"""The mutants that no check can kill, declared by hand, each with its reason."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant
from tools.mutation.session import Outcome, Verdict


@dataclasses.dataclass(frozen=True)
class Declared:
    """A declaration about mutants.

    Attributes:
        kind: `equivalent`: a mutant that behaves like the original. `elsewhere`: all mutants of
            lines that run only on a GPU. `unspecified`: all mutants of a function whose work the
            definition leaves open. The reasons of the last two name the tests that check them.
        module: The module of the mutants.
        function: The function of the mutants.
        before: The original lines, stripped; "": all lines of the function.
        after: The mutated lines, for kind `equivalent`.
        nth: Which of the function's mutants with these lines, from 1; None: all.
        reason: Why no check can kill them.
    """

    kind: str
    module: str
    function: str
    reason: str
    before: str = ""
    after: str = ""
    nth: int | None = None

    def is_about(self, mutant: Mutant) -> bool:
        """Return whether the declaration covers a mutant."""
        if (self.module, self.function) != (mutant.module, mutant.place.function):
            return False
        is_before = _bare(self.before) == _bare(mutant.before)
        if self.kind != "equivalent":
            return is_before or not self.before
        is_it = is_before and _bare(self.after) == _bare(mutant.after)
        return is_it and self.nth in {None, mutant.nth}

    def __str__(self) -> str:
        change = f": {self.before!r}" if self.before else ""
        change += f" => {self.after!r}" if self.kind == "equivalent" else ""
        return f"{self.module} {self.function}{change}"


def _bare(line: str) -> str:
    """Return a line without its spaces: cosmic-ray writes `f( -1)`.

    >>> _bare("f( -1)")
    'f(-1)'
    """
    return "".join(line.split())


class Declarations:
    """The declarations of a file.

    Args:
        declared: The declarations.
    """

    def __init__(self, declared: Sequence[Declared] = ()) -> None:
        self._declared = declared

    @classmethod
    def read(cls, path: Path) -> Declarations:
        """Read a file.

        Raises:
            ValueError: The file has another format.
        """
        try:
            modules = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(
            [
                _declared(module, function, line, reason, path)
                for module, functions in _items(path, modules)
                for function, lines in _items(f"{path}: {module}", functions)
                for line, reason in _items(f"{path}: {module} {function}", lines)
            ]
        )

    @property
    def modules(self) -> set[str]:
        """The modules that have declarations."""
        return {one.module for one in self._declared}

    def of(self, mutant: Mutant) -> Declared | None:
        """Return the declaration about a mutant; None if there is none."""
        return next((one for one in self._declared if one.is_about(mutant)), None)

    def wrong(
        self, modules: Iterable[str], evaluated: Sequence[tuple[Mutant, Outcome]]
    ) -> list[str]:
        """Return the errors in the declarations about modules that were evaluated to the end.

        Args:
            modules: Their names.
            evaluated: Their mutants, with the outcomes.

        Returns:
            A line for each error.
        """
        lines = []
        chosen = set(modules)
        for one in self._declared:
            if one.module not in chosen:
                continue
            found = [(mutant, how) for mutant, how in evaluated if one.is_about(mutant)]
            if not found:
                lines.append(f"declared {one.kind}, but no longer there: {one}")
            if one.kind == "unspecified":
                continue
            for mutant, how in found:
                if not how.verdict.is_alive:
                    at = f"line {mutant.start[0]}"
                    lines.append(f"declared {one.kind}, but killed by {how.by}: {one} ({at})")
                elif one.kind == "elsewhere" and _runs(mutant, how):
                    lines.append(f"declared elsewhere, but line {mutant.start[0]} runs here: {one}")
        return lines


def _runs(mutant: Mutant, outcome: Outcome) -> bool:
    """Return whether tests reach a mutant in code that does not only run at import."""
    return outcome.verdict is not Verdict.UNREACHED and not mutant.place.is_import_time


def _items(where: object, table: Any) -> Iterable[tuple[str, Any]]:  # noqa: ANN401  # as read
    if not isinstance(table, dict):
        raise ValueError(  # noqa: TRY004  # of the file, not of an argument
            f"{where} is {table!r}, expected [module.function] with lines"
        )
    return table.items()


def _declared(module: str, function: str, line: str, reason: object, path: Path) -> Declared:
    """Return the declaration of an entry."""
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{path}: {module} {function} gives no reason for {line!r}")
    if line == "unspecified":
        return Declared("unspecified", module, function, reason)
    before, arrow, after = line.partition(" => ")
    if not arrow:
        return Declared("elsewhere", module, function, reason, "" if line == "*" else line)
    after, mark, nth = after.rpartition(" #")
    if not mark or not nth.isdecimal():
        return Declared("equivalent", module, function, reason, before, f"{after}{mark}{nth}")
    return Declared("equivalent", module, function, reason, before, after, int(nth))
