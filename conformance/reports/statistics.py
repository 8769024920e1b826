"""What Hypothesis says of its draws: how many examples a check had, and where its time went.

Hypothesis hands its statistics, one dict for each test, to whoever stands in
`hypothesis.statistics.collector`; its own pytest plugin does, and makes text of them, rounded to
milliseconds, in which invalid examples and overruns are one number. The other source, its
observability, costs a representation of every example. So we stand there too. The form of the dict
is no promise: what is not as expected here is left out, and fails nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import statistics

COUNTS = ("valid", "invalid", "overrun", "failing")
"""What an example can be. Overrun: it was cut off, being too large."""


def no_statistics() -> dict[str, float]:
    """Return the statistics of no example."""
    return {**dict.fromkeys(COUNTS, 0), "draw_seconds": 0.0, "run_seconds": 0.0}


def condensed(found: Mapping[str, Any]) -> dict[str, float] | None:
    """Return what counts of Hypothesis' statistics of a test, None where they are of another form.

    Shrinking is left out: it says something of a failure, and nothing of the strategy.

    Args:
        found: What Hypothesis hands out.

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
            # What Hypothesis calls the runtime has the draws in it.
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
    """Note the statistics of the draws inside in a test's properties, which travel with its report.

    Args:
        item: The test. One that Hypothesis' plugin does not take for its own, such as a state
            machine's, is given the text that this plugin would make.
    """
    theirs = statistics.collector.value
    told: list[dict[str, float]] = []

    def note(found: Any) -> None:
        if theirs is not None:
            theirs(found)
        else:
            whole: Any = {**found, "nodeid": item.nodeid}
            text = statistics.describe_statistics(whole)
            item.hypothesis_statistics = text  # type: ignore[attr-defined]  # their own word
        numbers = condensed(found)
        if numbers is not None:
            told.append(numbers)

    with statistics.collector.with_value(note):  # type: ignore[arg-type]  # it is said to be None
        try:
            yield
        finally:
            if told:
                item.user_properties.append(("statistics", added(told)))


MOST_ROWS = 12
"""Functions whose statistics stand in the terminal unasked."""


def statistics_lines(found: Mapping[str, Mapping[str, float]], *, everyone: bool) -> Iterator[str]:
    """Yield the lines of the terminal's section: functions, or those that stand out of many.

    Args:
        found: The statistics of each function.
        everyone: Whether all functions are told, however many there are.
    """
    total = added(found.values())
    rows = sorted(found)
    is_cut = len(rows) > MOST_ROWS and not everyone
    if is_cut:
        rows = [name for name in rows if _stands_out(found[name], total)]
    width = max(map(len, ["function", *rows]))
    heads = ["valid", "invalid", "overrun", "drawing", "running"]
    yield "  ".join(["function".ljust(width), *(head.rjust(8) for head in heads)])
    for name in rows:
        yield "  ".join([name.ljust(width), *_cells(found[name])])
    yield "  ".join([("all" if not is_cut else f"all {len(found)}").ljust(width), *_cells(total)])
    if is_cut:
        yield (
            "(functions that draw for most of their time and long, or whose examples are often "
            "none; all: --hypothesis-show-statistics, --report)"
        )


def _stands_out(one: Mapping[str, float], total: Mapping[str, float]) -> bool:
    """Tell whether a function's strategy could do better: by its waste, or by its time."""
    wasted = one["invalid"] + one["overrun"]
    is_slow = one["draw_seconds"] > max(one["run_seconds"], 0.05 * total["draw_seconds"])
    return is_slow or wasted > 0.05 * (one["valid"] + wasted)


def _cells(one: Mapping[str, float]) -> list[str]:
    counts = [f"{one[name]:,.0f}" for name in ("valid", "invalid", "overrun")]
    share = draw_share(one)
    shares = ["-", "-"] if share is None else [f"{share:.0%}", f"{1 - share:.0%}"]
    return [cell.rjust(8) for cell in counts + shares]


def draw_share(one: Mapping[str, float]) -> float | None:
    """Return the part of its time that a check draws for, None where it took none.

    >>> draw_share({"draw_seconds": 1, "run_seconds": 3})
    0.25
    """
    seconds = one["draw_seconds"] + one["run_seconds"]
    return one["draw_seconds"] / seconds if seconds else None
