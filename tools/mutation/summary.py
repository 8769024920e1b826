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
from tools.mutation.session import Outcome, Verdict

MIN_SCORE: Final = 0.95
"""Of all mutants that are not declared, the share that must be killed."""

MIN_MODULE_SCORE: Final = 0.90
"""And of those of each module."""


@dataclasses.dataclass
class Tally:
    """How many mutants ended how.

    Attributes:
        mutants: There are.
        killed: A check failed, or the process crashed.
        timeouts: A check did not end.
        survived: No check failed, and nothing is declared.
        unreached: Of the survived: no check reaches it.
        equivalent: Declared as equivalent, and not killed.
        elsewhere: Declared as evaluated elsewhere, and not killed.
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
    def evaluated(self) -> int:
        """How many were evaluated."""
        return self.killed + self.timeouts + self.survived + self.equivalent + self.elsewhere

    @property
    def is_complete(self) -> bool:
        """Whether all were evaluated."""
        return self.evaluated == self.mutants

    @property
    def score(self) -> float:
        """The share that was killed, of those evaluated that are not declared; 1 of none."""
        killed = self.killed + self.timeouts
        return killed / (killed + self.survived) if killed + self.survived else 1.0

    def count(self, outcome: Outcome, kind: str | None) -> None:
        """Count one mutant.

        Args:
            outcome: What was found of it.
            kind: What it is declared as, None where it is not.
        """
        if not outcome.verdict.is_alive:
            self.timeouts += outcome.verdict is Verdict.TIMEOUT
            self.killed += outcome.verdict is not Verdict.TIMEOUT
            self.seconds_killed += outcome.seconds
            return
        self.seconds_alive += outcome.seconds
        if kind is None:
            self.survived += 1
            self.unreached += outcome.verdict is Verdict.UNREACHED
        else:
            setattr(self, kind, getattr(self, kind) + 1)

    def __add__(self, other: Tally) -> Tally:
        mine, others = dataclasses.asdict(self), dataclasses.asdict(other)
        return Tally(**{name: mine[name] + others[name] for name in mine})


def tally(
    mutants: Iterable[Mutant],
    evaluated: Sequence[tuple[Mutant, Outcome]],
    declarations: Declarations,
) -> dict[str, Tally]:
    """Count a run's mutants by module.

    Args:
        mutants: All there are.
        evaluated: Those that were evaluated, and what was found.
        declarations: What is declared.
    """
    tallies: dict[str, Tally] = {}
    for mutant in mutants:
        tallies.setdefault(mutant.module, Tally()).mutants += 1
    for mutant, outcome in evaluated:
        declared = declarations.of(mutant)
        tallies[mutant.module].count(outcome, declared.kind if declared else None)
    return tallies


def shortfalls(tallies: dict[str, Tally]) -> list[str]:
    """Return a line for each score that is too low, of modules that were evaluated to the end."""
    complete = {name: one for name, one in tallies.items() if one.is_complete}
    lines = [
        f"{name}: {_percent(one.score)} of the mutants are killed, expected at least"
        f" {_percent(MIN_MODULE_SCORE)}"
        for name, one in complete.items()
        if one.score < MIN_MODULE_SCORE
    ]
    total = sum(complete.values(), Tally())
    if total.score < MIN_SCORE:
        lines.append(
            f"in all: {_percent(total.score)} of the mutants are killed, expected at least"
            f" {_percent(MIN_SCORE)}"
        )
    return lines


def make_table(tallies: dict[str, Tally]) -> Table:
    """Return the table of modules."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="unreached: of those that survived, what no check reaches; elsewhere: what runs on"
        " a GPU only; score: of what is not declared; *: not evaluated to the end",
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
        table.add_row(name, *_cells(one), style=_style(one, MIN_MODULE_SCORE))
    if len(tallies) > 1:
        total = sum(tallies.values(), Tally())
        table.add_section()
        table.add_row("in all", *_cells(total), style=_style(total, MIN_SCORE))
    return table


def _style(one: Tally, least: float) -> str | None:
    return "red" if one.score < least else None


def _cells(one: Tally) -> list[str]:
    mutants = f"{one.mutants}" if one.is_complete else f"{one.evaluated} of {one.mutants} *"
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
    evaluated: Sequence[tuple[Mutant, Outcome]], declarations: Declarations
) -> list[str]:
    """Return the lines about each survivor that is not declared: where it is, and its diff."""
    lines: list[str] = []
    for mutant, outcome in sorted(evaluated, key=lambda item: (item[0].module, item[0].start)):
        if not outcome.verdict.is_alive or declarations.of(mutant) is not None:
            continue
        why = "no check reaches it"
        if outcome.verdict is Verdict.SURVIVED:
            why = f"passes {outcome.num_checks} checks"
        kind = mutant.operator.split("/")[1]
        where = f"{os.path.relpath(mutant.path)}:{mutant.start[0]}"
        name = f"{mutant.place.function or 'the module'}, {kind}, {mutant.digest[:8]}"
        lines += ["", f"{where} ({name}) {why}"]
        lines += [f"    {line}" for line in mutant.diff.splitlines()[2:]]
    return lines
