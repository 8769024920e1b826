"""Summarise a run of mutants: a line for each module, and the survivors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table

from tools.mutation.equivalents import Declarations
from tools.mutation.mutants import Mutant
from tools.mutation.session import Outcome, Verdict

MIN_SCORE: Final = 0.95
"""The share of all undeclared mutants that must be killed."""

MIN_MODULE_SCORE: Final = 0.90
"""The share of the undeclared mutants of each module that must be killed."""


COUNTS: Final = (
    "killed",
    "timeouts",
    "survived",
    "unreached",
    "equivalent",
    "elsewhere",
    "unspecified",
)
"""The counts, which are columns of the table.

Killed: a test failed, or the process crashed. Timeouts: a test did not end. Survived: no test
failed, and the mutant is not declared. Unreached: the survivors that no test reaches. Equivalent:
declared as equivalent, and not killed. Elsewhere: declared to run only on a GPU, and not killed.
Unspecified: in functions whose work the definition leaves open, killed or not.
"""


class Tally(Counter[str]):
    """The number of mutants, and the `COUNTS`."""

    @property
    def evaluated(self) -> int:
        """How many were evaluated."""
        return sum(self[name] for name in COUNTS if name != "unreached")

    @property
    def is_complete(self) -> bool:
        """Whether all were evaluated."""
        return self.evaluated == self["mutants"]

    @property
    def score(self) -> float:
        """The share of evaluated, undeclared mutants that were killed; 1 if there are none."""
        killed = self["killed"] + self["timeouts"]
        return killed / (killed + self["survived"]) if killed + self["survived"] else 1.0


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    found = Tally()
    for one in tallies:
        found.update(one)
    return found


def tally(
    mutants: Iterable[Mutant],
    evaluated: Sequence[tuple[Mutant, Outcome]],
    declarations: Declarations,
) -> dict[str, Tally]:
    """Count a run's mutants by module.

    Args:
        mutants: All mutants.
        evaluated: The evaluated mutants, with their outcomes.
        declarations: The declarations.
    """
    tallies: dict[str, Tally] = {}
    for mutant in mutants:
        tallies.setdefault(mutant.module, Tally())["mutants"] += 1
    for mutant, outcome in evaluated:
        one, declared = tallies[mutant.module], declarations.of(mutant)
        if declared is not None and declared.kind == "unspecified":
            one["unspecified"] += 1
        elif outcome.verdict is Verdict.TIMEOUT:
            one["timeouts"] += 1
        elif not outcome.verdict.is_alive:
            one["killed"] += 1
        elif declared is not None:
            one[declared.kind] += 1
        else:
            one["survived"] += 1
            one["unreached"] += outcome.verdict is Verdict.UNREACHED
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
    score = total(complete.values()).score
    if score < MIN_SCORE:
        lines.append(
            f"in all: {_percent(score)} of the mutants are killed, expected at least"
            f" {_percent(MIN_SCORE)}"
        )
    return lines


def make_table(tallies: dict[str, Tally]) -> Table:
    """Return the table of modules."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="unreached: of those that survived, what no test reaches; elsewhere: what runs on"
        " a GPU only; unspecified: what the definition leaves open; score: of what is not declared;"
        " *: not evaluated to the end",
    )
    table.add_column("module", no_wrap=True)
    for heading in ("mutants", *COUNTS, "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, one in tallies.items():
        table.add_row(name, *_cells(one), style=_style(one, MIN_MODULE_SCORE))
    if len(tallies) > 1:
        whole = total(tallies.values())
        table.add_section()
        table.add_row("in all", *_cells(whole), style=_style(whole, MIN_SCORE))
    return table


def _style(one: Tally, least: float) -> str | None:
    return "red" if one.score < least else None


def _cells(one: Tally) -> list[str]:
    mutants = f"{one['mutants']}"
    if not one.is_complete:
        mutants = f"{one.evaluated} of {mutants} *"
    score = _percent(one.score) if one["killed"] + one["timeouts"] + one["survived"] else ""
    return [mutants, *(str(one[name] or "") for name in COUNTS), score]


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
        why = "no test reaches it"
        if outcome.verdict is Verdict.SURVIVED:
            why = f"passes {outcome.num_tests} tests"
            why += f" ({outcome.num_left} were not run)" if outcome.num_left else ""
        kind = mutant.operator.split("/")[1]
        where = f"{os.path.relpath(mutant.path)}:{mutant.start[0]}"
        name = f"{mutant.place.function or 'the module'}, {kind}, {mutant.digest[:8]}"
        lines += ["", f"{where} ({name}) {why}"]
        lines += [f"    {line}" for line in mutant.diff.splitlines()[2:]]
    return lines
