"""Render a night as one self-contained HTML file, and as Markdown for an issue or a terminal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from conformance.reports.rendering import make_environment
from kvtwin.fuzz.report import words
from kvtwin.fuzz.report.charts import arrange_chart
from kvtwin.fuzz.report.history import past_night_of
from kvtwin.fuzz.report.trends import history_charts, night_charts

TONES: Final = {"passed": "good", "failed": "bad", "interrupted": "warn"}
"""The colour of the page, by verdict."""

MAX_SCRIPT: Final = 100_000
"""The most characters of a script, a table or a message that the page shows."""

MAX_LINES, MAX_CHARACTERS = 120, 8_000
"""How much of a script Markdown shows: an issue of GitHub has at most 65,536 characters."""


def html_of(record: Mapping[str, Any]) -> str:
    """Return a night as an HTML page.

    Args:
        record: The night, as `record.Night.to_json` gives it.
    """
    values = _values(record)
    ordered = [*values["new"], *values["known"], *values["fixed"]]
    return ENVIRONMENT.get_template("night.html.j2").render(
        **values,
        tone=TONES[record["verdict"]],
        tiles=tiles(record),
        open=[*values["new"], *values["known"]],
        places={finding["id"]: i for i, finding in enumerate(ordered, 1)},
        charts=night_charts(record),
        trends=history_charts(record),
        nights=[*record["history"], past_night_of(record)][::-1],
        next_number=itertools.count(1).__next__,
    )


def markdown_of(record: Mapping[str, Any]) -> str:
    """Return a night as Markdown.

    Args:
        record: The night, as `record.Night.to_json` gives it.
    """
    return ENVIRONMENT.get_template("night.md.j2").render(_values(record)).rstrip() + "\n"


def _values(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of both templates."""
    return {
        **record,
        **{name: words.findings(record, name) for name in ("new", "known", "fixed")},
        "headline": words.headline(record),
        "attention": words.attention(record),
        "kinds": words.kinds_of(record),
        "facts": words.facts(record),
    }


def tiles(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the page: value, label and CSS class."""
    new, known = (len(words.findings(record, status)) for status in ("new", "known"))
    found = [
        (f"{new:,}", "new failures", "fails" if new else ""),
        (f"{known:,}", "still open", "fails" if known else ""),
        (short(record["cases"]), "cases", "" if words.has_cases(record) else "fails"),
        (words.rate(record["cases_per_second"]), "cases per second", ""),
    ]
    for coverage in record["coverage"]:
        since = f", {coverage['new']:,} new" if coverage["new"] is not None else ""
        found.append((short(coverage["met"]), f"{coverage['kind']}{since}", ""))
    return found


def breakable(name: str) -> Markup:
    """Return a name that may be broken into lines where its parts meet.

    >>> breakable("test_a[host]")
    Markup('test_<wbr>a[<wbr>host]')
    """
    return Markup("<wbr>").join(re.findall(r"[^_.\[-]*[_.\[-]+|[^_.\[-]+", name))


def short(number: int) -> str:
    """Return a number with at most three significant digits.

    >>> short(0), short(9_999), short(12_345), short(1_234_567)
    ('0', '9,999', '12.3k', '1.23M')
    """
    if number >= 1_000_000:
        return f"{number / 1e6:,.3g}M" if number < 1e9 else f"{number / 1e6:,.0f}M"
    return f"{number / 1e3:.3g}k" if number >= 10_000 else f"{number:,}"


def cut(text: str) -> str:
    """Truncate a text to the length that a page should show.

    >>> cut("short"), len(cut("x" * 200_000))
    ('short', 100042)
    """
    if len(text) <= MAX_SCRIPT:
        return text
    return f"{text[:MAX_SCRIPT]}\n... ({len(text) - MAX_SCRIPT:,} more characters in the file)"


def cut_lines(text: str) -> str:
    """Truncate a text to the length that Markdown should show."""
    shown = "\n".join(text.splitlines()[:MAX_LINES])[:MAX_CHARACTERS]
    return text if len(shown) >= len(text.rstrip("\n")) else f"{shown}\n... (cut: see report.html)"


ENVIRONMENT: Final = make_environment(
    Path(__file__).parent,
    arranged_chart=arrange_chart,
    breakable=breakable,
    brief=words.shorten,
    coverage=words.coverage_words,
    cut=cut,
    cut_lines=cut_lines,
    finding_facts=words.finding_facts,
    flaky=words.flaky_words,
    place=lambda finding_id, places: places[finding_id],
    rate=words.rate,
    scope=words.scope_words,
    size=words.size,
    status=words.status_words,
    unseen=words.unseen_words,
)
