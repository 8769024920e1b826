"""The record of a run: all that a report says, as plain JSON. `schema.json` defines its form."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

import pytest

import reference
from conformance.absent import Absent, find
from conformance.profiles import Profile
from conformance.reports.statistics import added
from conformance.reports.versions import versions
from conformance.situations import Ledger
from conformance.summary import Run, skip_reason
from conformance.targets import STATEFUL_TEST, Target

SCHEMA_VERSION = "1.0"
"""The first number changes where an old reader would read wrong, the second where there is more."""

SCRIPT = "as a script"
"""The section of a test's report with the script."""


@dataclasses.dataclass
class Course:
    """How a run went, apart from what it says of functions.

    Attributes:
        started: When it began, in ISO 8601.
        command: The arguments of the command line.
        seed: What Hypothesis drew from, None for what is the same each time.
        trace: The file of the trace, None for the project's own.
        workers: The processes of pytest-xdist; 0 without.
        seconds: How long it took.
        exit_status: How it ended.
        counts: Tests by how they ended.
        errors: What failed and is no check: a module that cannot be imported, a worker that died.
    """

    started: str
    command: Sequence[str]
    seed: str | None = None
    trace: str | None = None
    workers: int = 0
    seconds: float = 0.0
    exit_status: str = ""
    counts: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("passed", "failed", "skipped"), 0)
    )
    errors: list[dict[str, str]] = dataclasses.field(default_factory=list)


def record_of(run: Run, ledger: Ledger, course: Course) -> dict[str, Any]:
    """Return the record of a run.

    Args:
        run: What it looked at, and how that ended.
        ledger: What it met.
        course: How it went.
    """
    names = sorted({name for name, _ in [*run.outcomes, *run.absent]})
    judged = run.judged() if run.profile.judges_situations else []
    return {
        "schema_version": SCHEMA_VERSION,
        "run": _course(run, course),
        "versions": versions(),
        "implementations": [
            {
                "name": one.name,
                "module": one.module.__name__,
                "version": one.version,
                "file": one.file,
                "offers": len(one.offered()),
                "adapter": f"{type(one.adapter).__module__}.{type(one.adapter).__name__}",
                "deviations": [
                    {"function": deviation.function, "reason": deviation.reason}
                    for deviation in one.deviations
                ],
            }
            for one in run.implementations
        ],
        "targets": [_target(target) for target in run.targets],
        "functions": [_function(run, ledger, name, is_judged=name in judged) for name in names],
        "unmet": list(run.unmet_lines(ledger)),
        "failures": _failures(run),
        "errors": course.errors,
    }


def _course(run: Run, course: Course) -> dict[str, Any]:
    return {
        "started": course.started,
        "seconds": round(course.seconds, 3),
        "exit_status": course.exit_status,
        "command": list(course.command),
        "profile": _profile(run.profile),
        "seed": course.seed,
        "trace": course.trace,
        "functions": None if run.functions is None else list(run.functions),
        "workers": course.workers,
        "tests": course.counts,
    }


def _profile(profile: Profile) -> dict[str, Any]:
    return {"name": profile.name, "is_random": profile.is_random}


def _target(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "implementation": target.under_test.name if target.under_test else "",
        "device": target.device,
        "is_simulated": target.is_simulated,
    }


def _function(run: Run, ledger: Ledger, name: str, *, is_judged: bool) -> dict[str, Any]:
    cells = [_cell(run, ledger, name, target) for target in run.targets]
    reports = [
        report for target in run.targets for report in run.outcomes.get((name, target.name), [])
    ]
    return {
        "name": name,
        "module": module_of(name),
        "summary": summary_of(name),
        "seconds": round(sum(report.duration for report in reports), 3),
        "is_judged": is_judged,
        "situations": [
            {"name": situation, "count": ledger.met[name, situation]}
            for situation in ledger.expected.get(name, ())
        ],
        "statistics": _rounded(added(told(report).get("statistics", {}) for report in reports)),
        "cells": cells,
    }


def _rounded(numbers: dict[str, float]) -> dict[str, float]:
    return {name: round(number, 4) for name, number in numbers.items()}


def _cell(run: Run, ledger: Ledger, name: str, target: Target) -> dict[str, Any]:
    reports = run.outcomes.get((name, target.name), [])
    state, others = run.verdict(name, target)
    return {
        "target": target.name,
        "state": state.value,
        "with": others,
        "examples": ledger.examples[name, target.name],
        "tests": {
            outcome: sum(report.outcome == outcome for report in reports)
            for outcome in ("passed", "failed", "skipped")
        },
        "seconds": round(sum(report.duration for report in reports), 3),
        "lacks": run.absent.get((name, target.name), []),
        "not_checked": sorted({skip_reason(report) for report in reports if report.skipped}),
    }


def _failures(run: Run) -> list[dict[str, Any]]:
    """Return what failed, function by function: first what fails by itself."""
    found = []
    for name, target in sorted(run.outcomes):
        failed = run.failed_tests(name, target)
        if failed:
            found.append(
                {
                    "function": name,
                    "target": target,
                    "with": run.failing_with(name, target),
                    "tests": [_test(report) for report in failed],
                }
            )
    return sorted(found, key=lambda failure: bool(failure["with"]))


def _test(report: pytest.TestReport) -> dict[str, Any]:
    properties = told(report)
    failure = dict(properties.get("failure") or {})
    message = failure.pop("message", "") or report.longreprtext
    scripts = [text for title, text in report.sections if title.startswith(f"Captured {SCRIPT}")]
    return {
        "test": report.nodeid,
        "seconds": round(report.duration, 3),
        "difference": str(properties.get("difference", "an error")),
        "verdict": "error",
        "where": "",
        "statement": "",
        "law": "",
        "call": "",
        "table": "",
        "pictures": [],
        **failure,
        "message": message,
        "script": next(iter(scripts), None),
        "kept": properties.get("kept"),
    }


def told(report: pytest.TestReport) -> dict[str, Any]:
    """Return what a test said of itself."""
    return dict(report.user_properties)


def module_of(function: str) -> str:
    """Return the module of a function, the same in both twins; empty where it is none of theirs.

    >>> module_of("BlockTables.append_block_ids"), module_of("stateful test"), module_of("toy")
    ('block_table', 'stateful', '')
    """
    if function == STATEFUL_TEST:
        return "stateful"
    found = getattr(reference, function.partition(".")[0], None)
    name = getattr(found, "__module__", None) or ""
    return name.rpartition(".")[2] if name.startswith("reference") else ""


def summary_of(function: str) -> str:
    """Return the first line of a function's docstring in `reference`.

    >>> summary_of("compute_slot_mapping")
    'Compute the slot to which each token of a batch is written.'
    """
    try:
        found = find(reference, function)
    except Absent:
        return ""
    return (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
