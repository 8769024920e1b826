"""A night as one HTML file, which needs no network and no scripts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from conformance.reports.page import render_page
from tools.fuzz.report import words
from tools.fuzz.report.charts import draw
from tools.fuzz.report.history import past_night_of
from tools.fuzz.report.trends import history_charts, night_charts

TONES = {"passed": "good", "failed": "bad", "interrupted": "warn"}
"""The colour of the page, by verdict."""

MAX_SCRIPT = 100_000
"""Characters of a script, a table or a message that the page shows."""


def html_of(record: Mapping[str, Any]) -> str:
    """Return a night as an HTML page.

    Args:
        record: The night, as `record.Night.to_json` gives it.
    """
    numbers = itertools.count(1)
    ordered = [
        finding
        for status in ("new", "known", "fixed")
        for finding in words.findings(record, status)
    ]
    values = {
        **record,
        "headline": words.headline(record),
        "tone": TONES[record["verdict"]],
        "tiles": tiles(record),
        "open": [finding for finding in ordered if finding["status"] != "fixed"],
        "fixed": list(words.findings(record, "fixed")),
        "places": {finding["id"]: i for i, finding in enumerate(ordered, 1)},
        "attention": words.attention(record),
        "kinds": words.kinds_of(record),
        "charts": night_charts(record),
        "trends": history_charts(record),
        "nights": [*record["history"], past_night_of(record)][::-1],
        "facts": words.facts(record),
    }
    filters: dict[str, Callable[..., Any]] = {
        "breakable": breakable,
        "brief": words.shorten,
        "chart": lambda chart: draw(chart, next(numbers)),
        "coverage": words.coverage_words,
        "cut": cut,
        "date": words.date_words,
        "finding_facts": words.finding_facts,
        "flaky": words.flaky_words,
        "number": "{:,}".format,
        "place": lambda finding_id, places: places[finding_id],
        "rate": words.rate,
        "scope": words.scope_words,
        "size": words.size,
        "status": words.status_words,
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
    """Return the few numbers that be on top: the number, what it counts, and a class."""
    numbers = {status: len(list(words.findings(record, status))) for status in ("new", "known")}
    found = [
        (f"{numbers['new']:,}", "new failures", "fails" if numbers["new"] else ""),
        (f"{numbers['known']:,}", "still open", "fails" if numbers["known"] else ""),
        (short(record["cases"]), "cases", "" if record["cases"] else "fails"),
        (words.rate(record["cases_per_second"]), "cases per second", ""),
    ]
    for coverage in record["coverage"]:
        new = f", {coverage['new']:,} new" if coverage["new"] is not None else ""
        found.append((short(coverage["met"]), f"{coverage['kind']}{new}", ""))
    return found


def breakable(name: str) -> Markup:
    """Return a name that may be broken into lines where its parts meet.

    >>> breakable("test_a[host]")
    Markup('test_<wbr>a[<wbr>host]')
    """
    return Markup("<wbr>").join(re.findall(r"[^_.\[-]*[_.\[-]+|[^_.\[-]+", name))


def short(number: int) -> str:
    """Return a number with at most three digits that count.

    >>> short(0), short(9_999), short(12_345), short(1_234_567)
    ('0', '9,999', '12.3k', '1.23M')
    """
    if number >= 1_000_000:
        return f"{number / 1e6:,.3g}M" if number < 1e9 else f"{number / 1e6:,.0f}M"
    return f"{number / 1e3:.3g}k" if number >= 10_000 else f"{number:,}"


def cut(text: str) -> str:
    """Return a text without its end, where it is longer than a page should show.

    >>> cut("short"), len(cut("x" * 200_000))
    ('short', 100042)
    """
    if len(text) <= MAX_SCRIPT:
        return text
    return f"{text[:MAX_SCRIPT]}\n... ({len(text) - MAX_SCRIPT:,} more characters in the file)"
