"""Hypothesis' statistics: the number of examples of a check, and where its time went.

Hypothesis calls the function in `hypothesis.statistics.collector` with the statistics of each test,
a dict. Its pytest plugin makes text of them, rounded to milliseconds, in which invalid examples and
overruns are one number; its observability costs a representation of every example. So we collect
the dict ourselves. Its form is not documented: statistics of another form are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import statistics

COUNTS = ("valid", "invalid", "overrun", "failing")
"""The kinds of examples; overrun: cut off because it was too large."""


def no_statistics() -> dict[str, float]:
    """Return empty statistics."""
    return {**dict.fromkeys(COUNTS, 0), "draw_seconds": 0.0, "run_seconds": 0.0}


def condensed(found: Mapping[str, Any]) -> dict[str, float] | None:
    """Summarise Hypothesis' statistics of a test; return None if they have an unknown form.

    Shrinking is left out: it depends on the failure, not on the strategy.

    Args:
        found: The statistics.

    >>> case = {"status": "valid", "runtime": 0.5, "drawtime": 0.25}
    >>> condensed({"generate-phase": {"test-cases": [case, {**case, "status": "overrun"}]}})
    {'valid': 1, 'invalid': 0, 'overrun': 1, 'failing': 0, 'draw_seconds': 0.5, 'run_seconds': 0.5}
    >>> condensed({"generate-phase": "another form"}) is None
    True
    """
    total = no_statistics()
    try:
        for case in found.get("generate-phase", {}).get("test-cases", ()):
            status = "failing" if case["status"] == "interesting" else case["status"]
            total[status] += 1
            # Hypothesis' runtime includes the time of drawing.
            total["draw_seconds"] += case["drawtime"]
            total["run_seconds"] += max(case["runtime"] - case["drawtime"], 0.0)
    except (AttributeError, KeyError, TypeError):
        return None
    return total


def added(many: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of statistics.

    >>> added([{"valid": 1, "invalid": 2}, {"valid": 3}])["valid"]
    4
    """
    total = no_statistics()
    for one in many:
        for name in total:
            total[name] += one.get(name, 0)
    return total


@contextlib.contextmanager
def collecting(item: pytest.Item) -> Iterator[None]:
    """Collect the statistics of a test, and add them to the properties of the test and its report.

    Args:
        item: The test. Hypothesis' plugin ignores some tests, such as those of state machines;
            they get the text that the plugin would add.
    """
    previous = statistics.collector.value
    collected: list[dict[str, float]] = []

    def note(found: Any) -> None:
        if previous is not None:
            previous(found)
        else:
            whole: Any = {**found, "nodeid": item.nodeid}
            text = statistics.describe_statistics(whole)
            item.hypothesis_statistics = text  # type: ignore[attr-defined]  # the attribute that Hypothesis reads
        numbers = condensed(found)
        if numbers is not None:
            collected.append(numbers)

    with statistics.collector.with_value(note):  # type: ignore[arg-type]  # typed as None
        try:
            yield
        finally:
            if collected:
                item.user_properties.append(("statistics", added(collected)))


MAX_ROWS = 12
"""The number of functions whose statistics the terminal shows by default."""


def statistics_lines(found: Mapping[str, Mapping[str, float]], *, show_all: bool) -> Iterator[str]:
    """Yield the lines of the terminal's section: all functions, or the outliers if there are many.

    Args:
        found: The statistics of each function.
        show_all: Whether to show all functions.
    """
    total = added(found.values())
    rows = sorted(found)
    is_cut = len(rows) > MAX_ROWS and not show_all
    if is_cut:
        rows = [name for name in rows if _is_outlier(found[name], total)]
    width = max(map(len, ["function", *rows]))
    heads = ["valid", "invalid", "overrun", "drawing", "running"]
    yield "  ".join(["function".ljust(width), *(head.rjust(8) for head in heads)])
    for name in rows:
        yield "  ".join([name.ljust(width), *_cells(found[name])])
    if len(found) > 1:
        name = f"all {len(found)}" if is_cut else "all"
        yield "  ".join([name.ljust(width), *_cells(total)])
    if is_cut:
        yield (
            "(functions with slow strategies or many invalid examples; for all functions: "
            "--hypothesis-show-statistics, --report)"
        )


def _is_outlier(one: Mapping[str, float], total: Mapping[str, float]) -> bool:
    """Return whether a function's strategy is slow, or wastes examples."""
    wasted = one["invalid"] + one["overrun"]
    is_slow = one["draw_seconds"] > max(one["run_seconds"], 0.05 * total["draw_seconds"])
    return is_slow or wasted > 0.05 * (one["valid"] + wasted)


def _cells(one: Mapping[str, float]) -> list[str]:
    counts = [f"{one[name]:,.0f}" for name in ("valid", "invalid", "overrun")]
    share = draw_share(one)
    shares = ["-", "-"] if share is None else [f"{share:.0%}", f"{1 - share:.0%}"]
    return [cell.rjust(8) for cell in counts + shares]


def draw_share(one: Mapping[str, float]) -> float | None:
    """Return the share of drawing in a check's time; None if it took no time.

    >>> draw_share({"draw_seconds": 1, "run_seconds": 3})
    0.25
    """
    seconds = one["draw_seconds"] + one["run_seconds"]
    return one["draw_seconds"] / seconds if seconds else None
