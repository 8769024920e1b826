"""Findings: deduplicated, written at once, read by the next night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.messages.mismatch import Mismatch
from conformance.values.call import Call
from conformance.values.comparison import first_difference
from kvtwin.fuzz.findings.failures import Failure, field_of, key_of
from kvtwin.fuzz.findings.records import Findings, open_findings


def failure(function: str = "f", **fields: Any) -> Failure:  # noqa: ANN401  # of any field
    """Return a failure of a function."""
    known: dict[str, Any] = {
        "target": "host",
        "property_name": f"test_{function}@host",
        "kind": "same answer",
        "field": "result",
        "error": "Mismatch",
        "line": f"{function} is wrong",
        "input": b"\x00 an input",
        "uses": (function,),
    }
    return Failure(function, **{**known, **fields})


def statuses(findings: Findings) -> dict[str, str]:
    """Return the status of each finding, by function."""
    return {one.failure.function: one.status for one in findings.by_id.values()}


def mismatch(expected: list[int], actual: list[int], path: str = "result") -> Mismatch:
    """Return the mismatch of two vectors."""
    difference = first_difference(np.array(expected), torch.tensor(actual), path)
    assert difference is not None
    return Mismatch(Call("f", {}), "host", difference)


def test_a_key_has_no_indices() -> None:
    """A difference in another element is the same failure; one in another field is another."""
    first = mismatch([1, 2], [1, 3])
    second = mismatch([1, 2, 5], [0, 2, 5])
    other = mismatch([1, 2], [1, 3], "out")
    assert ("f", "result", "Mismatch") == key_of("f", first) == key_of("f", second)
    assert ("f", "out", "Mismatch") == key_of("f", other)
    assert "groups[].name" == field_of(mismatch([1], [2], "groups[3].name"))


def test_a_key_has_the_class_of_the_error() -> None:
    """Another exception class is another failure; another message is not."""
    assert key_of("f", ValueError("a")) == key_of("f", ValueError("b"))
    assert key_of("f", ValueError("a")) != key_of("f", TypeError("a"))
    assert key_of("f", ValueError("a")) != key_of("g", ValueError("a"))


def test_an_id_is_a_file_name() -> None:
    """An id begins with the function, and differs if the key does."""
    first, second = failure("stateful test"), failure("stateful test", field="out")
    assert first.id.startswith("stateful-test-")
    assert first.id != second.id
    assert first.id == failure("stateful test", line="other", target="sim").id


def test_a_failure_is_stored_once(tmp_path: Path) -> None:
    """A failure is new the first time; later ones with its key are counted."""
    findings = Findings(tmp_path)
    assert None is not findings.add(failure())
    assert None is findings.add(failure(line="again"))
    assert None is not findings.add(failure("g"))
    [first, second] = findings.by_id.values()
    assert ("f is wrong", 2, 1) == (first.failure.line, first.seen, second.seen)


def test_a_failure_is_written_at_once(tmp_path: Path) -> None:
    """A failure is read back whole, with its case and its script."""
    case = {"kind": "call", "contract": "f", "reason": "wrong"}
    one = failure(case=case, script="print()\n", details={"table": "a\tb"}, requests=2)
    Findings(tmp_path).add(one)
    [read] = Findings(tmp_path).by_id.values()
    assert "known" == read.status
    assert (one.key, one.input, one.uses, one.details, one.requests) == (
        read.failure.key,
        read.failure.input,
        read.failure.uses,
        read.failure.details,
        read.failure.requests,
    )
    assert "print()\n" == read.failure.script
    assert isinstance(read.failure.case, dict)
    assert case.items() <= read.failure.case.items()
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_what_has_no_case_is_stored_as_its_input(tmp_path: Path) -> None:
    """A failure without a stored case is stored as the input that it was drawn from."""
    one = failure(input=b'["p", 0, ""]')
    Findings(tmp_path).add(one)
    stored = json.loads((tmp_path / "cases" / f"{one.id}.json").read_text(encoding="utf-8"))
    assert ("input", "f", '["p", 0, ""]') == (stored["kind"], stored["contract"], stored["input"])
    [read] = Findings(tmp_path).by_id.values()
    assert (None, one.input) == (read.failure.case, read.failure.input)


def test_a_minimized_failure_takes_its_place(tmp_path: Path) -> None:
    """The minimized failure replaces the larger one, and no later one replaces it."""
    findings = Findings(tmp_path)
    findings.add(failure(script="long"))
    findings.replace(failure().id, failure(script="short", is_minimal=True, fails=5, tries=5))
    findings.add(failure(script="long"))
    [one] = findings.by_id.values()
    assert ("short", 2, "new") == (one.failure.script, one.seen, one.status)
    assert "short" == findings.script_path(one.failure.id).read_text(encoding="utf-8")


def test_a_minimized_failure_may_have_another_key(tmp_path: Path) -> None:
    """A failure that gets a known key joins that finding, and its old files are removed."""
    findings = Findings(tmp_path)
    for field in ("result", "out"):
        findings.add(failure(field=field, script=field))
    known, other = failure(field="result"), failure(field="out")
    findings.replace(known.id, failure(field="out", script="small", is_minimal=True))
    assert {other.id} == set(findings.by_id) == set(Findings(tmp_path).by_id)
    assert 2 == findings.by_id[other.id].seen
    assert [f"{other.id}.py"] == [path.name for path in (tmp_path / "scripts").iterdir()]
    assert [f"{other.id}.json"] == [path.name for path in (tmp_path / "cases").iterdir()]


def test_a_minimized_failure_takes_the_place_of_another_that_is_not(tmp_path: Path) -> None:
    """If the known finding with the new key is not minimal, the minimized failure replaces it."""
    findings = Findings(tmp_path)
    for field in ("result", "out"):
        findings.add(failure(field=field, script="large"))
    small = failure(field="out", script="small", is_minimal=True)
    findings.replace(failure(field="result").id, small)
    [one] = findings.by_id.values()
    assert ("small", True) == (one.failure.script, one.failure.is_minimal)
    assert "small" == findings.script_path(small.id).read_text(encoding="utf-8")


def test_known_fixed_and_new_again(tmp_path: Path) -> None:
    """A finding that fails again is known, one that passes fixed, a fixed one that fails new."""
    first = Findings(tmp_path)
    for function in ("f", "g"):
        first.add(failure(function))
    assert {"f": "new", "g": "new"} == statuses(first)
    second = Findings(tmp_path)
    second.note_failing(failure("f").id, fails=5, tries=5)
    second.note_fixed(failure("g").id)
    assert {"f": "known", "g": "fixed"} == statuses(second)
    assert ["f"] == [one.failure.function for one in open_findings(second)]
    third = Findings(tmp_path)
    third.note_fixed(failure("f").id)
    third.note_failing(failure("g").id, fails=5, tries=5)
    assert {"f": "fixed", "g": "new"} == statuses(third)
    assert None is not third.add(failure("f"))
    assert {"f": "new", "g": "new"} == statuses(third)
    third.note_failing(failure("f").id, fails=5, tries=5)  # it was replayed in the meantime
    assert {"f": "new", "g": "new"} == statuses(third)


def test_a_flaky_failure_says_how_often(tmp_path: Path) -> None:
    """A finding that fails sometimes is open, with the numbers of failures and tries."""
    findings = Findings(tmp_path)
    findings.add(failure())
    findings.note_failing(failure().id, fails=2, tries=5)
    [one] = Findings(tmp_path).by_id.values()
    assert ("known", 2, 5) == (one.status, one.failure.fails, one.failure.tries)


ANSWER = failure("f")
LAW = failure("f", kind="law", field="", error="AssertionError")
OTHER_LAW = failure("f", kind="law", field="", error="IndexError")
FIRST, SECOND = sorted((LAW, OTHER_LAW), key=lambda one: one.id)
LAW_OF_USER = failure("g", kind="law", field="", error="AssertionError", uses=("g", "f"))
CRASH = failure("f", kind="crash")
CRASH_OF_USER = failure("g", kind="crash", uses=("f", "g"))
ANSWER_OF_USER = failure("g", uses=("f", "g"))
APART = failure("h", uses=("h",))
GROWTH = failure("f", kind="memory growth", field="", error="MemoryGrowthError")
OUT_OF_MEMORY = failure("f", kind="crash", field="", error="out of memory")
IF_LARGE = failure("f", kind="large", field="result[1]")
IN_THREADS = failure("f", kind="threads")

EXPLAINED: dict[str, tuple[list[list[Failure]], Failure | None]] = {
    "a wrong answer: laws of it and of its users": ([[ANSWER, LAW, LAW_OF_USER], [APART]], None),
    "a wrong answer: wrong answers of its users": ([[ANSWER, ANSWER_OF_USER]], None),
    "a crash: crashes of its users": ([[CRASH, CRASH_OF_USER]], None),
    "wrong answers under conditions: laws, not each other": (
        [[IF_LARGE, FIRST, SECOND], [IN_THREADS]],
        None,
    ),
    "memory that grows: a worker that ran out of it": ([[GROWTH, OUT_OF_MEMORY], [CRASH]], None),
    "one law: other laws of the same function": ([[FIRST, SECOND], [APART]], None),
    "a law that is fixed: nothing": ([[FIRST], [SECOND]], FIRST),
    "a wrong answer that is fixed: nothing": ([[LAW], [ANSWER]], ANSWER),
}
"""Groups of failures, each led by the one that explains the others; and the fixed failure."""


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_cause_is_reported_with_what_it_explains(name: str, tmp_path: Path) -> None:
    """Of the findings that one bug causes, only the one that explains the others is reported."""
    groups, fixed = EXPLAINED[name]
    findings = Findings(tmp_path)
    for one in reversed([one for group in groups for one in group]):
        findings.add(one)
    if fixed is not None:
        findings.note_fixed(fixed.id)
    found = {known: {x.failure.id for x in group} for known, group in findings.primary().items()}
    assert {cause.id: {one.id for one in others} for cause, *others in groups} == found


def test_a_script_of_a_fixed_failure_is_not_kept(tmp_path: Path) -> None:
    """A failure that comes back has the script of its new input, or none."""
    findings = Findings(tmp_path)
    findings.add(failure(script="of the first input"))
    findings.note_fixed(failure().id)
    findings.add(failure(input=b"another"))
    assert not findings.script_path(failure().id).exists()
    [read] = Findings(tmp_path).by_id.values()
    assert None is read.failure.script


def test_cases_of_known_failures_are_counted(tmp_path: Path) -> None:
    """Cases that a slice did not report are counted by key; one replay is one case."""
    findings = Findings(tmp_path)
    findings.add(failure())
    findings.count({failure().key: 7, failure("other").key: 3})
    findings.note_failing(failure().id, 4, 5)
    [one] = findings.by_id.values()
    assert 1 + 7 + 1 == one.seen


def test_a_finding_without_its_case_is_forgotten(tmp_path: Path) -> None:
    """Who deletes a stored case deletes the finding; one that never had a case stays."""
    findings = Findings(tmp_path)
    for function, data in (("deleted", b"1"), ("kept", b"1"), ("not drawn", b"")):
        findings.add(failure(function, input=data))
    findings.case_path(failure("deleted").id).unlink()
    assert {"kept": "known", "not drawn": "known"} == statuses(Findings(tmp_path))
