"""The mutants that no check can see, declared by hand, each with its reason."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools.mutation.mutants import Mutant
from tools.mutation.session import Judgement, Verdict

KEYS: Final = {
    "equivalent": ({"module", "function", "before", "after", "reason"}, {"nth"}),
    "elsewhere": ({"module", "function", "reason"}, {"before"}),
}


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a person found out about mutants.

    Attributes:
        kind: `equivalent`: one that means what the original means. `elsewhere`: those of lines that
            no target here runs; who does, and judges them, is named in the reason.
        module: Of the mutants.
        function: Of the mutants.
        before: The changed lines as they were, stripped; "" for all of what is elsewhere.
        after: The changed lines as they are; of what is elsewhere, nothing is said.
        nth: Which of the function's mutants with these lines; None: all.
        reason: Why no check can see them.
    """

    kind: str
    module: str
    function: str
    reason: str
    before: str = ""
    after: str = ""
    nth: int | None = None

    def is_about(self, mutant: Mutant) -> bool:
        """Tell whether a mutant is one of these."""
        if (self.module, self.function) != (mutant.module, mutant.place.function):
            return False
        is_before = _bare(self.before) == _bare(mutant.before)
        if self.kind == "elsewhere":
            return is_before or not self.before
        is_it = is_before and _bare(self.after) == _bare(mutant.after)
        return is_it and self.nth in {None, mutant.nth}

    def __str__(self) -> str:
        change = f": {self.before!r}" if self.before else ""
        change += f" -> {self.after!r}" if self.kind == "equivalent" else ""
        return f"{self.module} {self.function}{change}"


def _bare(line: str) -> str:
    """Return a line without its spaces: cosmic-ray writes `f( -1)`.

    >>> _bare("f( -1)")
    'f(-1)'
    """
    return "".join(line.split())


class Declarations:
    """What is declared, in a file.

    Args:
        declared: What is.
    """

    def __init__(self, declared: Sequence[Declared] = ()) -> None:
        self._declared = declared

    @classmethod
    def read(cls, path: Path) -> Declarations:
        """Read a file.

        Raises:
            ValueError: It is no such file.
        """
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: {error}") from error
        unknown = tables.keys() - KEYS.keys()
        if unknown:
            raise ValueError(f"{path} has [[{min(unknown)}]], but there are {', '.join(KEYS)}")
        for kind, found in tables.items():
            if not (isinstance(found, list) and all(isinstance(table, dict) for table in found)):
                raise ValueError(f"{path}: {kind} is no [[{kind}]], with two brackets on each side")
        return cls(
            [
                _declared(kind, table, f"{path}: [[{kind}]] {number}")
                for kind, found in tables.items()
                for number, table in enumerate(found, 1)
            ]
        )

    def of(self, mutant: Mutant) -> Declared | None:
        """Return what is declared of a mutant, None where nothing is."""
        return next((one for one in self._declared if one.is_about(mutant)), None)

    def wrong(
        self, modules: Iterable[str], judged: Sequence[tuple[Mutant, Judgement]]
    ) -> list[str]:
        """Return what is wrong with what is declared of modules that were judged to the end.

        Args:
            modules: Their names.
            judged: Their mutants, and what was found of each.

        Returns:
            Lines, one for each declaration that does not hold.
        """
        lines = []
        chosen = set(modules)
        for one in self._declared:
            if one.module not in chosen:
                continue
            found = [(mutant, how) for mutant, how in judged if one.is_about(mutant)]
            if not found:
                lines.append(f"declared {one.kind}, but no longer there: {one}")
            for mutant, how in found:
                if not how.verdict.is_alive:
                    at = f"line {mutant.start[0]}"
                    lines.append(f"declared {one.kind}, but seen by {how.by}: {one} ({at})")
                elif one.kind == "elsewhere" and how.verdict is not Verdict.UNREACHED:
                    lines.append(f"declared elsewhere, but line {mutant.start[0]} runs here: {one}")
        return lines


def _declared(kind: str, table: Mapping[str, Any], where: str) -> Declared:
    """Return what a table of the file declares."""
    needed, allowed = KEYS[kind]
    missing, unknown = needed - table.keys(), table.keys() - needed - allowed
    if missing or unknown:
        wrong = f"lacks {min(missing)}" if missing else f"has the unknown {min(unknown)}"
        raise ValueError(f"{where} {wrong}")
    for key, value in table.items():
        wanted = int if key == "nth" else str
        if type(value) is not wanted:
            raise ValueError(f"{where} has {key} = {value!r}, which is no {wanted.__name__}")
    if not str(table["reason"]).strip():
        raise ValueError(f"{where} gives no reason")
    return Declared(kind, **table)
