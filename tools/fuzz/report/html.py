"""A night as one HTML file that needs nothing else: no network, and no scripts to be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance.reports.page import render_page
from conformance.reports.words import duration
from tools.fuzz.report import words
from tools.fuzz.report.charts import draw
from tools.fuzz.report.history import past_night_of
from tools.fuzz.report.trends import history_charts, night_charts

TONES = {"passed": "good", "failed": "bad", "interrupted": "warn"}
"""The colour of the page, by verdict."""

MOST_SCRIPT = 100_000
"""Characters of a script, a table or a message that the page shows."""


def html_of(record: Mapping[str, Any]) -> str:
    """Return a night as an HTML page.

    Args:
        record: The night, as `record.Night.to_json` gives it.
    """
    numbers = itertools.count(1)
    values = {
        **record,
        "headline": words.headline(record),
        "tone": TONES[record["verdict"]],
        "tiles": tiles(record),
        "open": [one for one in record["findings"] if one["status"] != "fixed"],
        "fixed": list(words.findings(record, "fixed")),
        "places": {one["id"]: i for i, one in enumerate(record["findings"], 1)},
        "attention": words.attention(record),
        "kinds": words.kinds_of(record),
        "charts": night_charts(record),
        "trends": history_charts(record),
        "nights": [*record["history"], past_night_of(record)][::-1],
        "facts": words.facts(record),
    }
    filters: dict[str, Callable[..., Any]] = {
        "chart": lambda chart: draw(chart, next(numbers)),
        "coverage": words.coverage_words,
        "cut": cut,
        "date": words.date_words,
        "finding_facts": words.finding_facts,
        "flaky": words.flaky_words,
        "number": "{:,}".format,
        "rate": words.rate,
        "scope": words.scope_words,
        "size": words.size,
        "unseen": words.unseen_words,
    }
    return render_page(
        Path(__file__).parent,
        "night.html.j2",
        values,
        filters=filters,
        style_sheets=("night.css",),
    )


def tiles(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the few numbers that stand on top: the number, what it counts, and a class."""
    numbers = {status: len(list(words.findings(record, status))) for status in ("new", "known")}
    found = [
        (f"{numbers['new']:,}", "new failures", "fails" if numbers["new"] else ""),
        (f"{numbers['known']:,}", "still open", "fails" if numbers["known"] else ""),
        (f"{record['cases']:,}", "cases", "" if record["cases"] else "fails"),
        (words.rate(record["cases_per_second"]), "cases per second", ""),
    ]
    for coverage in record["coverage"]:
        new = f", {coverage['new']:,} new" if coverage["new"] is not None else ""
        found.append((f"{coverage['met']:,}", f"{coverage['kind']}{new}", ""))
    return [*found, (duration(record["seconds"]), "in all", "")]


def cut(text: str) -> str:
    """Return a text without its end, where it is longer than a page should show.

    >>> cut("short"), len(cut("x" * 200_000))
    ('short', 100038)
    """
    if len(text) <= MOST_SCRIPT:
        return text
    return f"{text[:MOST_SCRIPT]}\n... ({len(text) - MOST_SCRIPT:,} more characters in the file)"
