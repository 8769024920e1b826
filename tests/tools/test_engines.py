"""The table of an engine's releases."""

from __future__ import annotations

import doctest
from typing import Any

from tools.engines import environments, table


def report(version: str, *differences: str, state: str = "fails") -> dict[str, Any]:
    """Return the report of a run in which one function has wrong answers."""
    tests = [
        {
            "test": f"test_split.py::test_split_{i}[host-minimal]",
            "finding": "wrong answer",
            "difference": difference,
            "verdict": "error" if "Error" in difference else "value",
            "law": "",
            "where": "request 1",
            "statement": "Split.",
            "table": "request  tokens",
        }
        for i, difference in enumerate(differences)
    ]
    findings = ["wrong answer", "other difference"] if tests else []
    cells = [{"state": state, "findings": findings, "examples": 9}]
    failures = [{"function": "split", "with": [], "tests": tests}] if tests else []
    return {
        "implementations": [{"version": version, "offers": 42, "deviations": []}],
        "run": {"seconds": 1.5, "profile": {"name": "brief"}},
        "functions": [{"name": "split", "cells": cells}],
        "failures": failures,
    }


def test_each_wrong_answer_stands_there_once() -> None:
    """Wrong answers that differ only in numbers are listed once, also across releases."""
    page = table.markdown_of(
        {
            "0.1": table.summary_of(report("0.1", "result[0] = 1, but should be 2")),
            "0.2": table.summary_of(
                report("0.2", "result[0] = 5, but should be 0", "result[3] = 6, but should be 1")
            ),
            "0.3": table.summary_of(report("0.3", state="conforms")),
            "0.4": {"error": "no such release"},
        }
    )
    assert "| function | 0.1 | 0.2 | 0.3 |" in page
    assert "| names | 42 | 42 | 42 |" in page
    words = "wrong answers, other differences"
    assert f"| `split` | {words} | {words} | conforms |" in page
    assert "- Profile `brief`: 0.1, 0.2, 0.3\n" in page
    assert 1 == page.count("**0.1, 0.2**: `result[0] = 5, but should be 0`")
    assert "result[3] = 6" not in page
    assert "Not run: 0.4: no such release" in page


def test_what_has_no_right_answer_is_listed_below() -> None:
    """A failed law is shown if a release has no wrong answer that can be compared."""
    law, value = "AssertionError: assert 1 == 2", "num_decodes = 1, but should be 2"
    page = table.markdown_of({"0.1": table.summary_of(report("0.1", value, law))})
    assert f"**0.1**: `{value}`" in page
    assert law not in page
    assert "These fail too:\n\n- Split. (0.1)" in page
    assert f"**0.1**: `{law}`" in table.markdown_of({"0.1": table.summary_of(report("0.1", law))})


def test_examples_hold() -> None:
    """The doctests of both modules pass."""
    for module in (environments, table):
        result = doctest.testmod(module)
        assert (0, True) == (result.failed, result.attempted > 0)
