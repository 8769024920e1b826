"""The record of a run: the contents of its reports, as plain JSON; see `schema.json`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import reference
from conformance.coverage.goals import Coverage
from conformance.reports.failure import NO_DETAILS
from conformance.reports.sizes import axes_of
from conformance.reports.statistics import added
from conformance.reports.versions import versions
from conformance.results.outcomes import finding_in, properties_of, skip_reason
from conformance.results.run import Run
from conformance.targets.implementations import Absent
from conformance.targets.target import REFERENCE, STATEFUL_TEST, Target

SCHEMA_VERSION = "1.3"
"""The first number changes if old readers would misread it, the second if something is added."""


@dataclasses.dataclass
class RunInfo:
    """How a run was started and how it ended; `run` in `schema.json` describes the fields.

    Attributes:
        errors: Failures other than checks, such as a failed import or a worker that died.
    """

    started: str
    command: Sequence[str]
    seed: str | None = None
    trace: str | None = None
    workers: int = 0
    seconds: float = 0.0
    exit_status: str = ""
    tests: dict[str, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("passed", "failed", "skipped"), 0)
    )
    errors: list[dict[str, str]] = dataclasses.field(default_factory=list)


def record_of(run: Run, coverage: Coverage, info: RunInfo) -> dict[str, Any]:
    """Return the record of a run.

    Args:
        run: The run and its outcomes.
        coverage: Its coverage.
        info: How it was started and how it ended.
    """
    names = sorted({name for name, _ in [*run.outcomes, *run.absent]})
    complete_functions = run.complete_functions() if run.requires_coverage else []
    return {
        "schema_version": SCHEMA_VERSION,
        "run": {
            **{name: value for name, value in vars(info).items() if name != "errors"},
            "seconds": round(info.seconds, 3),
            "profile": {"name": run.profile.name, "is_random": run.profile.is_random},
            "functions": None if run.functions is None else list(run.functions),
        },
        "versions": versions(),
        "implementations": [
            {
                "name": one.name,
                "module": one.module.__name__,
                "version": one.version,
                "file": one.file,
                "is_strict": one.is_strict,
                "offers": len(one.offered()),
                "adapter": f"{type(one.adapter).__module__}.{type(one.adapter).__name__}",
                "deviations": [
                    {"function": deviation.function, "reason": deviation.reason}
                    for deviation in one.deviations
                ],
            }
            for one in run.implementations
        ],
        "targets": [
            {
                "name": target.name,
                "implementation": target.implementation.name,
                "device": target.device,
                "is_simulated": target.is_simulated,
            }
            for target in run.targets
        ],
        "functions": [
            _function(run, coverage, name, is_complete=name in complete_functions) for name in names
        ],
        "unreached": list(run.unreached_lines(coverage)),
        "failures": _failures(run),
        "errors": info.errors,
    }


def _function(run: Run, coverage: Coverage, name: str, *, is_complete: bool) -> dict[str, Any]:
    reports = [
        report for target in run.targets for report in run.outcomes.get((name, target.name), [])
    ]
    statistics = added(properties_of(report).get("statistics", {}) for report in reports)
    return {
        "name": name,
        "module": module_of(name),
        "summary": summary_of(name),
        "seconds": round(sum(report.duration for report in reports), 3),
        "is_complete": is_complete,
        "goals": [
            {"name": goal, "count": coverage.reached[name, goal]}
            for goal in coverage.expected.get(name, ())
        ],
        "axes": axes_of(coverage, name),
        "statistics": {kind: round(number, 4) for kind, number in statistics.items()},
        "cells": [_cell(run, coverage, name, target) for target in run.targets],
    }


def _cell(run: Run, coverage: Coverage, name: str, target: Target) -> dict[str, Any]:
    reports = run.outcomes.get((name, target.name), [])
    state, others = run.verdict(name, target)
    return {
        "target": target.name,
        "state": state.value,
        "findings": [finding.value for finding in run.findings(name, target.name)],
        "with": others,
        "examples": coverage.examples[name, target.name],
        "tests": {
            outcome: sum(report.outcome == outcome for report in reports)
            for outcome in ("passed", "failed", "skipped")
        },
        "seconds": round(sum(report.duration for report in reports), 3),
        "lacks": run.absent.get((name, target.name), []),
        "not_checked": sorted({skip_reason(report) for report in reports if report.skipped}),
    }


def _failures(run: Run) -> list[dict[str, Any]]:
    """Return the failures by function, those of functions that fail by themselves first."""
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
    properties = properties_of(report)
    failure = dict(properties.get("failure") or {})
    message = failure.pop("message", "") or report.longreprtext
    return {
        "test": report.nodeid,
        "seconds": round(report.duration, 3),
        "difference": str(properties.get("difference", "an error")),
        **NO_DETAILS,
        **failure,
        "finding": finding_in(report).value,
        "message": message,
        "script": properties.get("source"),
        "stored": properties.get("stored"),
    }


def module_of(function: str) -> str:
    """Return the module of a function of the twins, or an empty string.

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
        found = REFERENCE.find(function)
    except Absent:
        return ""
    return (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")


def with_old_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that also has the keys of schema 1.0, which the next release will remove.

    >>> with_old_keys({"unreached": [], "functions": [], "failures": []})["unmet"]
    []
    """
    functions = [
        {**function, "situations": function["goals"], "is_judged": function["is_complete"]}
        for function in record["functions"]
    ]
    failures = [
        {**failure, "tests": [{**test, "kept": test["stored"]} for test in failure["tests"]]}
        for failure in record["failures"]
    ]
    return {**record, "unmet": record["unreached"], "functions": functions, "failures": failures}
