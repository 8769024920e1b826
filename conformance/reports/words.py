"""Phrases that the Markdown and HTML reports share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.values.differences import Finding


def headline(record: Mapping[str, Any]) -> str:
    """Summarise a run in one sentence."""
    names = " and ".join(one["name"] for one in record["implementations"]) or "nothing"
    failures = [failure for failure in record["failures"] if not failure["with"]]
    status = record["run"]["exit_status"]
    for finding in Finding:
        failing = {
            failure["function"]
            for failure in failures or record["failures"]
            if finding.value in {test["finding"] for test in failure["tests"]}
        }
        if failing:
            which = ", ".join(sorted(failing)) if len(failing) <= 3 else f"{len(failing)} functions"
            return f"{names}: {finding.plural} of {which}"
    if record["errors"]:
        return f"{names}: the run has errors"
    if record["unreached"]:
        return f"{names}: coverage goals were not reached"
    number = sum(map(conforms, record["functions"]))
    count = f"{number} {'function conforms' if number == 1 else 'functions conform'}"
    return f"{names}: {count}" if status == "ok" else f"{names}: {count}; the run ended: {status}"


def conforms(function: Mapping[str, Any]) -> bool:
    """Return whether a function ran on some target, and failed on none."""
    states = {cell["state"] for cell in function["cells"]}
    return bool(states & {"conforms", "deviates"}) and not states & {"fails", "fails with"}


def facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the properties of a run, as pairs of a name and a value."""
    run = record["run"]
    found = [
        (
            "under test",
            (
                f"{one['module']} {one['version']}, {one['file']}; {one['offers']} names; "
                f"adapter {one['adapter']}"
            ),
        )
        for one in record["implementations"]
    ]
    found += [
        ("deviates (declared)", f"{deviation['function']}: {deviation['reason']}")
        for one in record["implementations"]
        for deviation in one["deviations"]
    ]
    processes = f" in {run['workers']} processes" if run["workers"] else ""
    tests = ", ".join(f"{number:,} {outcome}" for outcome, number in run["tests"].items() if number)
    found += [
        ("targets", ", ".join(target["name"] for target in record["targets"])),
        ("profile", run["profile"]["name"]),
        ("seed", run["seed"] or "derandomized: the same examples each time"),
        ("trace", run["trace"] or "the project's own"),
        ("functions", ", ".join(run["functions"] or ["all"])),
        ("date", date_words(run["started"])),
        ("duration", f"{duration(run['seconds'])}{processes}"),
        ("tests", tests or "none"),
        ("ended", run["exit_status"]),
        ("command", " ".join(run["command"])),
    ]
    return found + list(record["versions"].items())


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(0.25), duration(59.5), duration(308.8), duration(1800), duration(29112)
    ('0.2 s', '60 s', '5 min 9 s', '30 min', '8 h 5 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 100:
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def date_words(moment: str) -> str:
    """Format a time of ISO 8601.

    >>> date_words("2026-11-22T21:05:41+00:00")
    '2026-11-22 21:05:41 UTC'
    """
    return moment.replace("T", " ").replace("+00:00", " UTC")


def cell_words(cell: Mapping[str, Any]) -> str:
    """Describe the state of a function on a target.

    >>> cell_words({"state": "conforms", "examples": 1200, "with": [], "findings": []})
    'conforms (1,200)'
    """
    words = {
        "conforms": f"conforms ({cell['examples']:,})",
        "fails": ", ".join(f"{finding}s" for finding in cell["findings"]),
        "fails with": f"fails with {', '.join(cell['with'])}",
        "deviates": f"deviates, declared ({cell['examples']:,})",
        "not run": "-",
    }
    return words.get(cell["state"], str(cell["state"]))


def goals_words(function: Mapping[str, Any]) -> str:
    """Return how many of its coverage goals a function reached.

    >>> goals_words({"goals": [{"count": 3}, {"count": 0}]})
    '1/2'
    """
    reached = sum(goal["count"] > 0 for goal in function["goals"])
    return f"{reached}/{len(function['goals'])}"
