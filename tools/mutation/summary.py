"""What a run of mutants comes to: a line for each module, and the survivors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table

from tools.mutation.equivalents import Declarations
from tools.mutation.mutants import Mutant
from tools.mutation.session import Judgement, Verdict

LEAST_SCORE: Final = 0.95
"""Of all mutants that are not declared, the share that must be killed."""

LEAST_MODULE_SCORE: Final = 0.90
"""And of those of each module."""


@dataclasses.dataclass
class Tally:
    """How many mutants ended how.

    Attributes:
        mutants: There are.
        killed: A check failed, or the judge crashed.
        timeouts: A check did not end.
        survived: No check failed, and nothing is declared.
        unreached: Of the survived: no check comes by.
        equivalent: Declared as equivalent, and not killed.
        elsewhere: Declared as judged elsewhere, and not killed.
        seconds_killed: Of processor time, for those killed.
        seconds_alive: And for those that were not.
    """

    mutants: int = 0
    killed: int = 0
    timeouts: int = 0
    survived: int = 0
    unreached: int = 0
    equivalent: int = 0
    elsewhere: int = 0
    seconds_killed: float = 0.0
    seconds_alive: float = 0.0

    @property
    def judged(self) -> int:
        """How many were judged."""
        return self.killed + self.timeouts + self.survived + self.equivalent + self.elsewhere

    @property
    def is_complete(self) -> bool:
        """Whether all were judged."""
        return self.judged == self.mutants

    @property
    def score(self) -> float:
        """The share that was seen, of those judged that are not declared; 1 of none."""
        seen = self.killed + self.timeouts
        return seen / (seen + self.survived) if seen + self.survived else 1.0

    def count(self, judgement: Judgement, kind: str | None) -> None:
        """Count one mutant.

        Args:
            judgement: What was found of it.
            kind: What it is declared as, None where it is not.
        """
        if not judgement.verdict.is_alive:
            self.timeouts += judgement.verdict is Verdict.TIMEOUT
            self.killed += judgement.verdict is not Verdict.TIMEOUT
            self.seconds_killed += judgement.seconds
            return
        self.seconds_alive += judgement.seconds
        if kind is None:
            self.survived += 1
            self.unreached += judgement.verdict is Verdict.UNREACHED
        else:
            setattr(self, kind, getattr(self, kind) + 1)

    def __add__(self, other: Tally) -> Tally:
        mine, others = dataclasses.asdict(self), dataclasses.asdict(other)
        return Tally(**{name: mine[name] + others[name] for name in mine})


def tally(
    mutants: Iterable[Mutant],
    judged: Sequence[tuple[Mutant, Judgement]],
    declarations: Declarations,
) -> dict[str, Tally]:
    """Count a run's mutants by module.

    Args:
        mutants: All there are.
        judged: Those that were judged, and what was found.
        declarations: What is declared.
    """
    tallies: dict[str, Tally] = {}
    for mutant in mutants:
        tallies.setdefault(mutant.module, Tally()).mutants += 1
    for mutant, judgement in judged:
        declared = declarations.of(mutant)
        tallies[mutant.module].count(judgement, declared.kind if declared else None)
    return tallies


def shortfalls(tallies: dict[str, Tally]) -> list[str]:
    """Return a line for each score that is too low, of modules that were judged to the end."""
    complete = {name: one for name, one in tallies.items() if one.is_complete}
    lines = [
        f"{name}: {_percent(one.score)} of the mutants are seen, at least"
        f" {_percent(LEAST_MODULE_SCORE)} must be"
        for name, one in complete.items()
        if one.score < LEAST_MODULE_SCORE
    ]
    total = sum(complete.values(), Tally())
    if total.score < LEAST_SCORE:
        lines.append(
            f"in all: {_percent(total.score)} of the mutants are seen, at least"
            f" {_percent(LEAST_SCORE)} must be"
        )
    return lines


def make_table(tallies: dict[str, Tally]) -> Table:
    """Return the table of modules."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="unreached: of those that survived, what no check comes by; elsewhere: what runs on"
        " a GPU only; score: of what is not declared; *: not judged to the end",
    )
    table.add_column("module", no_wrap=True)
    for heading in (
        "mutants",
        "killed",
        "timeouts",
        "survived",
        "unreached",
        "equivalent",
        "elsewhere",
        "score",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in tallies.items():
        table.add_row(name, *_cells(one), style=_style(one, LEAST_MODULE_SCORE))
    if len(tallies) > 1:
        total = sum(tallies.values(), Tally())
        table.add_section()
        table.add_row("in all", *_cells(total), style=_style(total, LEAST_SCORE))
    return table


def _style(one: Tally, least: float) -> str | None:
    return "red" if one.score < least else None


def _cells(one: Tally) -> list[str]:
    mutants = f"{one.mutants}" if one.is_complete else f"{one.judged} of {one.mutants} *"
    counts = (
        one.killed,
        one.timeouts,
        one.survived,
        one.unreached,
        one.equivalent,
        one.elsewhere,
    )
    score = _percent(one.score) if one.killed + one.timeouts + one.survived else ""
    return [mutants, *(str(count) if count else "" for count in counts), score]


def _percent(share: float) -> str:
    """Return a share in percent, never rounded up: 95.0% is at least 95%.

    >>> _percent(0.94999)
    '94.9%'
    """
    return f"{int(share * 1000) / 10:.1f}%"


def survivor_lines(
    judged: Sequence[tuple[Mutant, Judgement]], declarations: Declarations
) -> list[str]:
    """Return what tells of each survivor that is not declared: where it is, and its diff."""
    lines: list[str] = []
    for mutant, judgement in sorted(judged, key=lambda item: (item[0].module, item[0].start)):
        if not judgement.verdict.is_alive or declarations.of(mutant) is not None:
            continue
        why = "no check comes by"
        if judgement.verdict is Verdict.SURVIVED:
            why = f"passes {judgement.num_checks} checks"
        kind = mutant.operator.split("/")[1]
        where = f"{os.path.relpath(mutant.path)}:{mutant.start[0]}"
        name = f"{mutant.place.function or 'the module'}, {kind}, {mutant.digest[:8]}"
        lines += ["", f"{where} ({name}) {why}"]
        lines += [f"    {line}" for line in mutant.diff.splitlines()[2:]]
    return lines
