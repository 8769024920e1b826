"""A run as one self-contained HTML file, and as Markdown for a pull request or a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from conformance.coverage.size_axes import BANDS
from conformance.reports.rendering import make_environment
from conformance.reports.sizes import size_lines
from conformance.reports.statistics import added, draw_share
from conformance.reports.words import (
    cell_words,
    conforms,
    duration,
    facts,
    goals_words,
    headline,
)
from conformance.values.differences import Finding

ENVIRONMENT: Final = make_environment(
    words=cell_words, goals=goals_words, share=draw_share, size_lines=size_lines
)


def html_of(record: Mapping[str, Any]) -> str:
    """Return a run as an HTML page.

    Args:
        record: The record of the run, from `record.record_of`.
    """
    functions = record["functions"]
    by_module: dict[str, list[Any]] = {}
    for function in functions:
        by_module.setdefault(function["module"] or "other", []).append(function)
    return ENVIRONMENT.get_template("report.html.j2").render(
        **record,
        headline=headline(record),
        tone="good" if record["run"]["exit_status"] == "ok" else "bad",
        facts=facts(record),
        modules=sorted(by_module.items()),
        bands=list(BANDS.values()),
        tiles=tiles(record),
        longest=max((function["seconds"] for function in functions), default=0) or 1,
        total=added(function["statistics"] for function in functions),
        next_number=itertools.count(1).__next__,
    )


def markdown_of(record: Mapping[str, Any]) -> str:
    """Return a run as Markdown.

    Args:
        record: The record of the run, from `record.record_of`.
    """
    template = ENVIRONMENT.get_template("report.md.j2")
    return template.render(**record, headline=headline(record), facts=facts(record)).rstrip() + "\n"


def tiles(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the numbers at the top of the page: value, label and CSS class."""
    states = [{cell["state"] for cell in function["cells"]} for function in record["functions"]]
    findings = [
        {name for cell in function["cells"] for name in cell["findings"]}
        for function in record["functions"]
    ]
    conforming = sum(map(conforms, record["functions"]))
    absent = sum(found <= {"absent", "not run"} for found in states)
    counts = [one["count"] for function in record["functions"] for one in function["goals"]]
    examples = sum(
        cell["examples"] for function in record["functions"] for cell in function["cells"]
    )
    found = [
        (f"{conforming:,}", "conform", "conforms" if conforming else ""),
        *(
            (f"{sum(one.value in found for found in findings):,}", one.plural, "fails")
            for one in Finding
        ),
        (f"{absent:,}", "absent", ""),
        (f"{examples:,}", "examples", ""),
        (f"{sum(map(bool, counts)):,}/{len(counts):,}", "coverage goals reached", ""),
        (duration(record["run"]["seconds"]), "in all", ""),
    ]
    optional = {"absent", *(one.plural for one in Finding)}
    return [tile for tile in found if tile[0] != "0" or tile[1] not in optional]
