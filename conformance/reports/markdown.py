"""A run as Markdown: for a pull request, or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.reports.words import cell_words, facts, first_test, goals_words, headline


def markdown_of(record: Mapping[str, Any]) -> str:
    """Return a run as Markdown.

    Args:
        record: The record of the run, from `record.record_of`.
    """
    return "\n".join(_lines(record)).rstrip() + "\n"


def _lines(record: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"# {escaped(headline(record))}", "")
    for name, value in facts(record):
        yield f"- **{escaped(name)}:** {escaped(value)}"
    yield ""
    if record["failures"] or record["errors"]:
        yield from ("## Failures", "")
        for failure in record["failures"]:
            yield from _failure(failure)
        for error in record["errors"]:
            yield from (f"### {escaped(error['where'])}", "", *fenced(error["message"]), "")
    if record["unreached"]:
        yield from (
            "## Not reached",
            "",
            *(f"- {escaped(line)}" for line in record["unreached"]),
            "",
        )
    names = [target["name"] for target in record["targets"]]
    yield from ("## Functions", "")
    yield row("function", *names, "goals", "time")
    yield row(*["---"] * (len(names) + 1), "---:", "---:")
    for function in record["functions"]:
        cells = [cell_words(cell) for cell in function["cells"]]
        goals = goals_words(function)
        yield row(f"`{function['name']}`", *cells, goals, f"{function['seconds']:.0f} s")
    yield from ("", "## Coverage goals", "")
    for function in record["functions"]:
        if function["goals"]:
            reached = f"{goals_words(function)} met"
            yield from (f"<details><summary>{escaped(function['name'])}: {reached}</summary>", "")
            for goal in function["goals"]:
                yield f"- {escaped(goal['name'])}: {goal['count']:,}"
            yield from ("", "</details>", "")


def _failure(failure: Mapping[str, Any]) -> Iterator[str]:
    title = f"`{failure['function']}` on {escaped(failure['target'])}"
    if failure["with"]:
        yield from (f"### {title} fails with {', '.join(failure['with'])}", "")
        return
    test = first_test(failure)
    where = f" ({escaped(test['where'])})" if test["where"] else ""
    yield from (f"### {title}", "", f"{code(test['difference'])}{where}", "")
    yield from fenced(test["table"] or test["message"])
    if test["script"]:
        yield from ("", "<details><summary>as a script</summary>", "")
        yield from (*fenced(test["script"], "python"), "", "</details>")
    others = [other["test"] for other in failure["tests"][1:]]
    if others:
        yield from ("", "Also failed: " + ", ".join(map(code, others)))
    yield ""


def escaped(text: str) -> str:
    r"""Escape a text for one line of Markdown.

    >>> print(escaped("a|b <c> *d*"))
    a\|b &lt;c> \*d\*
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def code(text: str) -> str:
    """Format a text as inline code, also if it has backticks."""
    text = " ".join(text.split())
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def row(*cells: str) -> str:
    """Return a row of a table.

    >>> row("a", "b")
    '| a | b |'
    """
    return f"| {' | '.join(cells)} |"


def fenced(text: str, language: str = "text") -> list[str]:
    """Return the lines of a block of code, fenced by more backticks than it has.

    >>> fenced("x = 1", "python")
    ['```python', 'x = 1', '```']
    """
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return [f"{ticks}{language}", text.rstrip("\n"), ticks]
