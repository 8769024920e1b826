"""A night as Markdown: for an issue, a job's summary, or a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformance.reports.markdown import code, escaped, fenced, row
from conformance.reports.words import duration
from tools.fuzz.report import words

MAX_LINES, MAX_CHARACTERS = 120, 8_000
"""How much of a script stands here: an issue of GitHub has at most 65,536 characters."""


def markdown_of(record: Mapping[str, Any]) -> str:
    """Return a night as Markdown.

    Args:
        record: The night, as `record.Night.to_json` gives it.
    """
    return "\n".join(_lines(record)).rstrip() + "\n"


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"# {escaped(words.headline(record))}", "")
    yield from _list("", map(escaped, words.attention(record)))
    for status, title in (("new", "New failures"), ("known", "Still open")):
        found = list(words.findings(record, status))
        yield from (f"## {title}", "") if found else ()
        for finding in found:
            yield from finding_lines(finding)
    yield from ("## Errors in the run itself", "") if record["errors"] else ()
    for error in record["errors"]:
        yield from (f"### {escaped(error['where'])}", "", *fenced(_cut(error["message"])), "")
    fixed = words.findings(record, "fixed")
    yield from _list("Fixed", (f"{_title(finding)}: {code(finding['line'])}" for finding in fixed))
    yield from _list("Bisection", map(_bisection, record["bisections"]))
    yield from _list("Small scopes, enumerated", map(_scope, record["exhaustive"]))
    yield from _coverage(record)
    yield from _rows("Targets", "target", record["by_target"], record)
    yield from _rows("Functions", "function", record["by_function"], record)
    facts = (f"**{escaped(name)}:** {escaped(value)}" for name, value in words.facts(record))
    yield from _list("The run", facts)


def _list(title: str, items: Iterable[str]) -> Iterator[str]:
    """Yield a section with a list, nothing where it is empty."""
    lines = [f"- {item}" for item in items]
    if lines:
        yield from (f"## {title}", "") if title else ()
        yield from (*lines, "")


def _title(finding: Mapping[str, Any]) -> str:
    return f"{code(finding['function'])} on {escaped(finding['target'])}"


def _bisection(one: Mapping[str, Any]) -> str:
    commit = code(one["first_bad"]) if one["first_bad"] else "not found"
    return f"{code(one['case'])}: {commit} {escaped(one['subject'])}"


def _scope(scope: Mapping[str, Any]) -> str:
    return f"**{escaped(scope['name'])}:** {escaped(words.scope_words(scope))}"


def finding_lines(finding: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of a failure: also the text of an issue.

    Args:
        finding: The failure, as in the record.
    """
    flaky = words.flaky_words(finding)
    title = f"{_title(finding)}: {escaped(finding['kind'])}"
    yield from (f"### {title}{f' ({flaky})' if flaky else ''}", "", code(finding["line"]), "")
    for name, value in words.finding_facts(finding):
        yield f"- {escaped(name)}: {code(value)}"
    yield ""
    for name, field, language in (
        ("the call", "table", "text"),
        ("the script", "script_text", "python"),
    ):
        if finding[field]:
            yield from (f"<details><summary>{name}</summary>", "")
            yield from (*fenced(_cut(finding[field]), language), "", "</details>", "")


def _cut(text: str) -> str:
    """Return a text without its end, where it is long."""
    lines = text.splitlines()
    short = "\n".join(lines[:MAX_LINES])[:MAX_CHARACTERS]
    return text if len(short) >= len(text.rstrip("\n")) else f"{short}\n... (cut: see report.html)"


def _coverage(record: Mapping[str, Any]) -> Iterator[str]:
    if not record["coverage"]:
        return
    yield from ("## Coverage", "")
    yield row("kind", "met", "new since the last night", "chance of a new one", "still unseen")
    yield row("---", "---:", "---:", "---:", "---")
    for one in record["coverage"]:
        new = "-" if one["new"] is None else f"{one['new']:,}"
        estimate = one["estimate"]
        share = "-" if estimate is None else f"{100 * estimate['share_new']:.2g}%"
        met, unseen = words.coverage_words(one), words.unseen_words(one)
        yield row(escaped(one["kind"]), met, new, share, escaped(unseen))
    yield ""


def _rows(
    title: str, head: str, rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]
) -> Iterator[str]:
    kinds = words.kinds_of(record)
    yield from (f"## {title}", "")
    yield row(head, "cases", "time", *map(escaped, kinds), "failures")
    yield row("---", "---:", "---:", *["---:"] * len(kinds), "---:")
    for one in rows:
        met = [f"{one['met'].get(kind, 0):,}" for kind in kinds]
        failures = f"{len(one['findings']):,}"
        cells = (f"{one['cases']:,}", duration(one["seconds"]), *met, failures)
        yield row(escaped(one["name"]), *cells)
    yield ""
