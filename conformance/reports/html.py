"""A run as one HTML file that needs nothing else: no network, and no scripts to be read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.reports.statistics import added, draw_share
from conformance.reports.svg import svg_of
from conformance.reports.words import (
    cell_words,
    duration,
    facts,
    first_test,
    headline,
    situations_words,
)

HERE = Path(__file__).parent


def html_of(record: Mapping[str, Any]) -> str:
    """Return a run as an HTML page.

    Args:
        record: The run, as `record.record_of` gives it.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    numbers = itertools.count(1)
    environment.filters |= {
        "anchor": anchor,
        "difference": difference_parts,
        "duration": duration,
        "words": cell_words,
        "situations": situations_words,
        "share": draw_share,
        "svg": lambda picture: svg_of(picture, next(numbers)),
    }
    functions = record["functions"]
    by_module: dict[str, list[Any]] = {}
    for function in functions:
        by_module.setdefault(function["module"] or "other", []).append(function)
    page = environment.get_template("report.html.j2").render(
        **record,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),  # noqa: S704  # our own
        headline=headline(record),
        is_good=record["run"]["exit_status"] == "ok",
        facts=facts(record),
        modules=sorted(by_module.items()),
        tiles=tiles(record),
        longest=max((function["seconds"] for function in functions), default=0) or 1,
        total=added(function["statistics"] for function in functions),
        first_test=first_test,
    )
    return page.rstrip() + "\n"


def tiles(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the few numbers that stand on top: what they are, what of, and of which kind."""
    states = [{cell["state"] for cell in function["cells"]} for function in record["functions"]]
    failing = sum(bool(found & {"fails", "fails with"}) for found in states)
    conforming = sum(
        bool(found & {"conforms", "deviates"}) and not found & {"fails", "fails with"}
        for found in states
    )
    absent = sum(found <= {"absent", "not run"} for found in states)
    counts = [one["count"] for function in record["functions"] for one in function["situations"]]
    examples = sum(
        cell["examples"] for function in record["functions"] for cell in function["cells"]
    )
    found = [
        (f"{conforming:,}", "conform", "conforms" if conforming else ""),
        (f"{failing:,}", "fail", "fails" if failing else ""),
        (f"{absent:,}", "absent", ""),
        (f"{examples:,}", "examples", ""),
        (f"{sum(map(bool, counts)):,}/{len(counts):,}", "situations met", ""),
        (duration(record["run"]["seconds"]), "in all", ""),
    ]
    return [tile for tile in found if tile[:2] != ("0", "absent")]


def anchor(text: str) -> str:
    """Return a text as the name of an element.

    >>> anchor("situations of a runner's life")
    'situations-of-a-runner-s-life'
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-")


def difference_parts(line: str) -> tuple[str, str, str]:
    """Return the field of a difference, what was got, and what should be; the last two may be ''.

    >>> difference_parts("result[1] = 3, but should be 2")
    ('result[1]', '3', '2')
    >>> difference_parts("ValueError: no")
    ('ValueError: no', '', '')
    """
    found = re.fullmatch(r"(.*?) = (.*), but should be (.*)", line, re.DOTALL)
    return (found[1], found[2], found[3]) if found else (line, "", "")
