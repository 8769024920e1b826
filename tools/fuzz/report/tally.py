"""The tables of a night, computed from the events of each property."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tools.fuzz.report.entries import Coverage, PropertyRow, Row
from tools.fuzz.report.estimates import estimate_unseen
from tools.fuzz.report.history import NO_HISTORY, History
from tools.fuzz.report.record import Night
from tools.fuzz.report.seen import digest


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What the night did for one property.

    Attributes:
        name: The property.
        function: The function that it is about.
        target: The target on which it ran.
        kind: The kind of the property, such as `answer` or `refusal`.
        cases: How many cases were run.
        seconds: How long they took.
        slices: How many slices of time it got.
        counts: By kind of coverage, how many cases met each event. An event has the same name in
            every night, and a name of its own among the events of its kind: with the function,
            where it is one of the function.
        observed: By kind of coverage, in how many cases its events were observed, where that was
            not done in all of them.
    """

    name: str
    function: str
    target: str
    kind: str
    cases: int = 0
    seconds: float = 0.0
    slices: int = 0
    counts: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    observed: Mapping[str, int] = dataclasses.field(default_factory=dict)


def with_tables(
    night: Night,
    tallies: Sequence[Tally],
    *,
    declared: Mapping[str, Iterable[str]] | None = None,
    history: History = NO_HISTORY,
) -> Night:
    """Return a night with its coverage, its tables, and the earlier nights.

    Args:
        night: The night.
        tallies: What it did for each property.
        declared: By kind of coverage, all events that there are, where they are known.
        history: The earlier nights, as `history.read_history` gives them.
    """
    known = {kind: frozenset(events) for kind, events in (declared or {}).items()}
    kinds = dict.fromkeys([*known, *(kind for tally in tallies for kind in tally.counts)])
    rows = _Rows(night, list(kinds), history.seen)
    return dataclasses.replace(
        night,
        coverage=[_coverage_of(kind, tallies, known.get(kind), history.seen) for kind in kinds],
        properties=[rows.of_property(tally) for tally in tallies],
        by_function=rows.grouped(tallies, "function"),
        by_target=rows.grouped(tallies, "target"),
        history=history.nights,
        history_notes=history.notes,
    )


def _coverage_of(
    kind: str,
    tallies: Iterable[Tally],
    declared: frozenset[str] | None,
    seen: Mapping[str, frozenset[int]] | None,
) -> Coverage:
    """Return what a night met of one kind of coverage."""
    counts: Counter[str] = Counter()
    num_cases = 0
    for tally in tallies:
        num_cases += tally.observed.get(kind, tally.cases)
        counts.update(tally.counts.get(kind, {}))
    met = {event for event, count in counts.items() if count}
    unmet = None if declared is None else sorted(declared - met)
    earlier = None if seen is None else seen.get(kind)
    digests = set(map(digest, met))
    return Coverage(
        kind=kind,
        met=len(met),
        new=None if earlier is None else len(digests - earlier),
        lost=None if earlier is None else len(earlier - digests),
        total=None if declared is None else len(declared | met),
        unmet=unmet or (),
        estimate=estimate_unseen(
            counts.values(), num_cases, max_unseen=None if unmet is None else len(unmet)
        ),
    )


@dataclasses.dataclass
class _Rows:
    """Makes the rows of tables."""

    night: Night
    kinds: Sequence[str]
    seen: Mapping[str, frozenset[int]] | None

    def of_property(self, tally: Tally) -> PropertyRow:
        """Return the row of a property."""
        found = self._row(tally.name, [tally], "property")
        return PropertyRow(
            **vars(found),
            function=tally.function,
            target=tally.target,
            kind=tally.kind,
            slices=tally.slices,
        )

    def grouped(self, tallies: Iterable[Tally], field: str) -> list[Row]:
        """Return a row for each function, or each target, by name."""
        groups: dict[str, list[Tally]] = {}
        for tally in tallies:
            groups.setdefault(getattr(tally, field), []).append(tally)
        return [self._row(name, groups[name], field) for name in sorted(groups)]

    def _row(self, name: str, tallies: Sequence[Tally], field: str) -> Row:
        met = {
            kind: {
                event
                for tally in tallies
                for event, count in tally.counts.get(kind, {}).items()
                if count
            }
            for kind in self.kinds
        }
        new = None
        if self.seen is not None:
            new = {
                kind: sum(digest(event) not in self.seen[kind] for event in events)
                for kind, events in met.items()
                if kind in self.seen
            }
        return Row(
            name=name,
            cases=sum(tally.cases for tally in tallies),
            seconds=sum(tally.seconds for tally in tallies),
            met={kind: len(events) for kind, events in met.items()},
            new=new,
            findings=[
                finding.id
                for finding in self.night.findings
                if finding.status != "fixed" and getattr(finding, field) == name
            ],
        )


def digests_of(tallies: Iterable[Tally]) -> dict[str, set[int]]:
    """Return what was met, by kind of coverage, as `history.append_night` keeps it."""
    found: dict[str, set[int]] = {}
    for tally in tallies:
        for kind, counts in tally.counts.items():
            events = (event for event, count in counts.items() if count)
            found.setdefault(kind, set()).update(map(digest, events))
    return found
