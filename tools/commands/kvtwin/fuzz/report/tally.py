"""The tables of a night, computed from the events of each property."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kvtwin.fuzz.report.estimates import estimate_unseen
from kvtwin.fuzz.report.history import NO_HISTORY, History
from kvtwin.fuzz.report.record import Coverage, Night, PropertyRow, Row
from kvtwin.fuzz.report.seen import digest


@dataclasses.dataclass(kw_only=True)
class Tally:
    """The results of a night for one property.

    Attributes:
        name: The property.
        function: The function that it tests.
        target: The target on which it ran.
        kind: The kind of its check, such as `same answer`.
        cases: How many cases were run.
        seconds: How long they took.
        slices: How many slices of time it got.
        counts: By kind of coverage, how many cases met each event. An event has the same name in
            every night, unique within its kind: it includes the function if it belongs to one.
        observed: By kind of coverage, how many times its events were observed; default: once a
            case.
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
        tallies: The results for each property.
        declared: By kind of coverage, all events that exist, if they are known.
        history: The earlier nights, as `history.read_history` returns them.
    """
    known = {kind: frozenset(events) for kind, events in (declared or {}).items()}
    kinds = dict.fromkeys([*known, *(kind for tally in tallies for kind in tally.counts)])

    def row_of(name: str, members: Sequence[Tally], field: str) -> Row:
        events = {kind: _events(members, kind) for kind in kinds}
        return Row(
            name=name,
            cases=sum(tally.cases for tally in members),
            seconds=sum(tally.seconds for tally in members),
            met={kind: len(met) for kind, met in events.items()},
            new=None if history.seen is None else _num_new(events, history.seen),
            findings=[
                finding.id
                for finding in night.findings
                if finding.status != "fixed" and getattr(finding, field) == name
            ],
        )

    def rows_by(field: str) -> list[Row]:
        groups: dict[str, list[Tally]] = {}
        for tally in tallies:
            groups.setdefault(getattr(tally, field), []).append(tally)
        return [row_of(name, groups[name], field) for name in sorted(groups)]

    return dataclasses.replace(
        night,
        coverage=[_coverage_of(kind, tallies, known.get(kind), history.seen) for kind in kinds],
        properties=[
            PropertyRow(
                **vars(row_of(tally.name, [tally], "property")),
                function=tally.function,
                target=tally.target,
                kind=tally.kind,
                slices=tally.slices,
            )
            for tally in tallies
        ],
        by_function=rows_by("function"),
        by_target=rows_by("target"),
        history=history.nights,
        history_notes=history.notes,
    )


def _events(tallies: Iterable[Tally], kind: str) -> Counter[str]:
    """Return the events of a kind that properties met, with the number of cases that met each."""
    found: Counter[str] = Counter()
    for tally in tallies:
        found.update(tally.counts.get(kind, {}))
    return +found


def _num_new(
    events: Mapping[str, Iterable[str]], seen: Mapping[str, frozenset[int]]
) -> dict[str, int]:
    """Return how many events the last night did not meet, by kind of coverage."""
    return {
        kind: sum(digest(event) not in seen[kind] for event in met)
        for kind, met in events.items()
        if kind in seen
    }


def _coverage_of(
    kind: str,
    tallies: Sequence[Tally],
    declared: frozenset[str] | None,
    seen: Mapping[str, frozenset[int]] | None,
) -> Coverage:
    """Return the coverage of one kind in a night."""
    counts = _events(tallies, kind)
    unmet = None if declared is None else sorted(declared - counts.keys())
    earlier = None if seen is None else seen.get(kind)
    digests = set(map(digest, counts))
    return Coverage(
        kind=kind,
        met=len(counts),
        new=None if earlier is None else len(digests - earlier),
        lost=None if earlier is None else len(earlier - digests),
        total=None if declared is None else len(declared | counts.keys()),
        unmet=unmet or (),
        estimate=estimate_unseen(
            counts.values(),
            sum(tally.observed.get(kind, tally.cases) for tally in tallies),
            max_unseen=None if unmet is None else len(unmet),
        ),
    )


def digests_of(tallies: Sequence[Tally]) -> dict[str, set[int]]:
    """Return the digests of the events that were met, by kind, as `append_night` takes them."""
    kinds = dict.fromkeys(kind for tally in tallies for kind in tally.counts)
    return {kind: set(map(digest, _events(tallies, kind))) for kind in kinds}
