"""A record as `report.json`, `report.md` and `report.html`, which is one file without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from conformance.reports.files import write_files
from conformance.values.differences import Finding


def write_reports(record: Mapping[str, Any], folder: Path) -> None:
    """Write the reports of a run, from its `record.record_of`, in place of those of an earlier."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": escaped, "fenced": fenced, "goals": goals_words}
    values = {**record, "headline": headline(record), "facts": facts(record)}
    texts = {"report.json": json.dumps(record, indent=1, ensure_ascii=False) + "\n"}
    for name in ("report.md", "report.html"):
        texts[name] = environment.get_template(f"{name}.j2").render(values).rstrip() + "\n"
    write_files(texts, folder)


def headline(record: Mapping[str, Any]) -> str:
    """Summarise a run in one sentence."""
    names = " and ".join(one["name"] for one in record["implementations"])
    cells = [(one["name"], cell) for one in record["functions"] for cell in one["cells"]]
    for finding in Finding:
        failing = {
            name for name, cell in cells if finding.value in cell["findings"] and not cell["with"]
        }
        if failing:
            which = ", ".join(sorted(failing)) if len(failing) <= 3 else f"{len(failing)} functions"
            return f"{names}: {finding.plural} of {which}"
    number = len({name for name, cell in cells if cell["state"] in {"conforms", "deviates"}})
    count = f"{number} {'function conforms' if number == 1 else 'functions conform'}"
    status = record["run"]["exit_status"]
    return f"{names}: {count}" if status == "ok" else f"{names}: {status}; {count}"


def facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the properties of a run, as pairs of a name and a value."""
    run = record["run"]
    tests = ", ".join(f"{number:,} {outcome}" for outcome, number in run["tests"].items())
    return [
        *(("under test", one["description"]) for one in record["implementations"]),
        *(("deviates (declared)", line) for line in record["deviations"]),
        ("targets", ", ".join(record["targets"])),
        ("command", " ".join(run["command"])),
        ("profile", f"{run['profile']}, {'seed ' + run['seed'] if run['seed'] else 'no seed'}"),
        ("date", run["started"].replace("T", " ").replace("+00:00", " UTC")),
        ("tests", f"{tests}; {run['seconds']:,.0f} s; the run ended: {run['exit_status']}"),
        *record["versions"].items(),
    ]


def goals_words(function: Mapping[str, Any]) -> str:
    """Return how many of its coverage goals a function reached, as in the table.

    >>> goals_words({"goals": {"even": 3, "odd": 0}})
    '1/2'
    """
    return f"{sum(map(bool, function['goals'].values()))}/{len(function['goals'])}"


def escaped(text: str) -> str:
    r"""Escape a text for one line of Markdown.

    >>> print(escaped("a|b <c> *d*"))
    a\|b &lt;c> \*d\*
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


def fenced(text: str) -> str:
    """Return a block of code of Markdown, fenced by more backticks than it has.

    >>> print(fenced("x = 1"))
    ```text
    x = 1
    ```
    """
    ticks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return "\n".join([f"{ticks}text", text.rstrip("\n"), ticks])
