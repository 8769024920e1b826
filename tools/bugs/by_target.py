"""Report which targets catch each kernel bug: `python -m tools.bugs --targets sim,native`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich import box
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tools.bugs.catalogue import Bug
    from tools.bugs.outcomes import Outcome

MARKS: Final = {"caught": "yes", "not caught": "no"}
"""The table's mark for each verdict; `broken patch` is printed as it is."""


def on_each(bugs: Sequence[Bug], targets: Sequence[str]) -> list[Bug]:
    """Return the bugs that are declared for one of the targets, once for each of the targets.

    Args:
        bugs: A catalogue.
        targets: Their names.
    """
    return [
        dataclasses.replace(bug, target=target, message=bug.message * (target == bug.target))
        for bug in bugs
        if bug.target in targets
        for target in targets
    ]


def make_table(bugs: Sequence[Bug], outcomes: Sequence[Outcome], targets: Sequence[str]) -> Table:
    """Return the table of the bugs that each target catches, and why it misses the others.

    Args:
        bugs: Each for all targets, one after another.
        outcomes: The outcome of each.
        targets: Their names.
    """
    table = Table(
        title="bugs that targets catch", caption=_count(outcomes, targets), box=box.SIMPLE_HEAD
    )
    table.add_column("what is wrong", ratio=5)
    for target in targets:
        table.add_column(target, no_wrap=True)
    table.add_column("why it is missed", ratio=4)
    function = ""
    for bug, found in _grouped(bugs, outcomes):
        if bug.function != function:
            table.add_section()
            table.add_row(f"[bold]{escape(bug.function)}[/bold]")
            function = bug.function
        marks = [MARKS.get(one.verdict, one.verdict) for one in found]
        why = "; ".join(bug.missed_by.values())
        table.add_row(escape(f"  {bug.what}"), *marks, escape(why))
    return table


def find_wrong(bugs: Sequence[Bug], outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each bug that no target catches, and for each miss that is not declared.

    Args:
        bugs: Each for all targets, one after another.
        outcomes: The outcome of each.
    """
    for bug, found in _grouped(bugs, outcomes):
        if not any(one.is_caught for one in found):
            yield f"no target catches it: {bug.name}"
        for one in found:
            if one.verdict not in MARKS:
                yield one.line
            elif one.is_caught and one.target in bug.missed_by:
                yield f"{one.target} catches it, but `missed_by` says that it does not: {bug.name}"
            elif not one.is_caught and one.target not in bug.missed_by:
                yield f"{one.target} misses it, and `missed_by` does not say why: {bug.name}"


def _grouped(
    bugs: Sequence[Bug], outcomes: Sequence[Outcome]
) -> Iterator[tuple[Bug, list[Outcome]]]:
    """Yield each bug, and its outcomes on all targets."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    names: dict[tuple[str, str], Bug] = {}
    for bug, outcome in zip(bugs, outcomes, strict=False):  # fewer if the run was interrupted
        names[bug.module, bug.name] = bug
        found.setdefault((bug.module, bug.name), []).append(outcome)
    for name, bug in names.items():
        yield bug, found[name]


def _count(outcomes: Sequence[Outcome], targets: Sequence[str]) -> str:
    """Return how many bugs each target catches."""
    counts = []
    for target in targets:
        found = [one.is_caught for one in outcomes if one.target == target]
        counts.append(f"{target} catches {sum(found)} of {len(found)}")
    return ", ".join(counts)
