"""The charts of a report: a night over time, and the trends over nights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from conformance.reports.words import date_words, duration
from kvtwin.fuzz.report.charts import Chart, Line, time_ticks
from kvtwin.fuzz.report.history import past_night_of
from kvtwin.fuzz.report.words import kinds_of, rate

MAX_POINTS = 200
"""The most points of a curve; more are thinned out."""

MAX_NIGHTS = 90
"""The most nights that a chart shows, the latest ones."""


def night_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of a night over time; none if it has fewer than two points."""
    points = _thinned(record["curve"])
    if len(points) < 2:
        return []
    unit, ticks = time_ticks(points[-1]["seconds"])
    took = duration(points[-1]["seconds"])

    def chart(
        title: str,
        numbers: Sequence[int],
        *,
        is_stepped: bool = False,
        level: tuple[float, str] | None = None,
    ) -> Chart:
        values = [(p["seconds"], number) for p, number in zip(points, numbers, strict=True)]
        last = values[-1][1]
        return Chart(
            title=title,
            value=f"{last:,}",
            lines=[Line(f"{last:,} after {took}", values, is_stepped=is_stepped)],
            x_name=f"{unit} since the start",
            x_ticks=ticks,
            description=f"{title} in the course of {took}: from {values[0][1]:,} to {last:,}.",
            level=level,
        )

    found = []
    for coverage in record["coverage"]:
        kind, total = coverage["kind"], coverage["total"]
        level = None if total is None else (total, f"declared: {total:,}")
        numbers = [point["met"].get(kind, 0) for point in points]
        found.append(chart(f"Different {kind}", numbers, level=level))
    found.append(chart("Cases", [point["cases"] for point in points]))
    if points[-1]["failures"]:
        failures = [point["failures"] for point in points]
        found.append(chart("Different failures", failures, is_stepped=True))
    return found


def history_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the charts over the nights of a history, tonight last; none for a first night."""
    nights = [*record["history"], past_night_of(record)][-MAX_NIGHTS:]
    if len(nights) < 2:
        return []
    charts = [
        _trend("Cases per second", nights, {"": _rate}, rate),
        _trend(
            "Failures",
            nights,
            {
                "new": lambda night: night["new"],
                "still open": lambda night: night["known"],
                "fixed": lambda night: night["fixed"],
            },
        ),
    ]
    for kind in kinds_of(record):
        known = [night for night in nights if kind in night["met"]]
        if len(known) > 1:
            of = {"": lambda night, kind=kind: night["met"][kind]}
            charts.append(_trend(f"Different {kind}", known, of, has_zero=False))
    return charts


def _trend(
    title: str,
    nights: Sequence[Mapping[str, Any]],
    values: Mapping[str, Callable[[Mapping[str, Any]], float]],
    words: Callable[[float], str] = "{:,}".format,
    *,
    has_zero: bool = True,
) -> Chart:
    """Return a chart with a line for each value over the nights."""
    lines, changes = [], []
    for style, (name, value_of) in enumerate(values.items()):
        numbers = [value_of(night) for night in nights]
        label = f" {name}" if name else ""
        hints = [
            f"{date_words(night['started'])}: {words(number)}{label}"
            for night, number in zip(nights, numbers, strict=True)
        ]
        lines.append(Line(name, list(enumerate(numbers)), hints, style))
        changes.append(f"{name or 'values'} from {words(numbers[0])} to {words(numbers[-1])}")
    return Chart(
        title=title,
        value=words(lines[0].points[-1][1]) if len(lines) == 1 else "",
        lines=lines,
        x_name="night",
        x_ticks=_night_ticks(nights),
        description=f"{title} over {len(nights)} nights: {', '.join(changes)}.",
        has_zero=has_zero,
    )


def _night_ticks(nights: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """Return the numbers and the dates of some nights, including the last.

    >>> nights = [{"started": f"2026-11-{day:02}T01:00:00+00:00"} for day in range(1, 8)]
    >>> _night_ticks(nights)
    [(0, '1 Nov'), (2, '3 Nov'), (4, '5 Nov'), (6, '7 Nov')]
    """
    last = len(nights) - 1
    step = max(1, -(-last // 4))
    chosen = sorted(range(last, -1, -step))
    dates = [datetime.fromisoformat(nights[i]["started"]) for i in chosen]
    labels = [f"{date.day} {date:%b}" for date in dates]
    if len(set(labels)) == 1:
        labels = [f"{date:%H:%M}" for date in dates]
    shown = ["" if i and label == labels[i - 1] else label for i, label in enumerate(labels)]
    return list(zip(chosen, shown, strict=True))


def _rate(night: Mapping[str, Any]) -> float:
    """Return the cases per second of a night."""
    return float(night["cases"] / night["seconds"]) if night["seconds"] else 0.0


def _thinned(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most `MAX_POINTS` points, including the first and the last."""
    if len(points) <= MAX_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]
