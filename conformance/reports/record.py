"""The record of a run, as plain values: what the table at its end says, and its failures."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any, Final

import pytest
import torch

from conformance.coverage.goals import Coverage
from conformance.results.outcomes import finding_in, properties_of
from conformance.results.run import Run
from conformance.targets.target import Target

SCHEMA_VERSION: Final = "2.0"
"""The first number changes if old readers would misread it, the second if something is added."""

PACKAGES: Final = "kvtwin torch numpy ml_dtypes numba numba-cuda hypothesis pytest pytest-xdist"
"""Packages whose versions a report lists, if they are installed."""


def record_of(run: Run, coverage: Coverage, about: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a run.

    Args:
        run: The run and its outcomes.
        coverage: Its coverage.
        about: How it was started and how it ended.
    """
    names = {name for name, _ in run.outcomes}
    names |= set() if run.functions is None else run.lacking
    return {
        "schema_version": SCHEMA_VERSION,
        "run": about,
        "versions": versions(),
        "implementations": [
            {
                "name": one.name,
                "version": one.version,
                "file": one.file,
                "description": one.describe(),
            }
            for one in run.implementations
        ],
        "deviations": [
            f"{deviation.function}: {deviation.reason}"
            for one in run.implementations
            for deviation in one.deviations
        ],
        "targets": [target.name for target in run.targets],
        "functions": [_function(run, coverage, name) for name in sorted(names)],
        "unreached": list(run.unreached_lines(coverage)),
        "notes": list(run.notes(coverage)),
        "failures": _failures(run),
    }


def _function(run: Run, coverage: Coverage, name: str) -> dict[str, Any]:
    cells = [_cell(run, coverage, name, target) for target in run.targets]
    goals = {goal: coverage.reached[name, goal] for goal in coverage.expected.get(name, ())}
    seconds = round(sum(cell["seconds"] for cell in cells), 3)
    return {"name": name, "seconds": seconds, "goals": goals, "cells": cells}


def _cell(run: Run, coverage: Coverage, name: str, target: Target) -> dict[str, Any]:
    reports = run.outcomes.get((name, target.name), [])
    state, others = run.verdict(name, target)
    outcomes = [report.outcome for report in reports]
    return {
        "target": target.name,
        "state": state.value,
        "words": run.state(name, target, coverage),  # in the table
        "findings": [finding.value for finding in run.findings(name, target.name)],
        "with": others,
        "examples": coverage.examples[name, target.name],
        "tests": {word: outcomes.count(word) for word in ("passed", "failed", "skipped")},
        "seconds": round(sum(report.duration for report in reports), 3),
    }


def _failures(run: Run) -> list[dict[str, Any]]:
    """Return the failures by function, those of functions that fail by themselves first."""
    found = [
        {
            "function": name,
            "target": target,
            "with": run.failing_with(name, target),
            "tests": [_test(report) for report in run.failed_tests(name, target)],
        }
        for name, target in sorted(run.outcomes)
    ]
    return sorted(filter(lambda one: one["tests"], found), key=lambda one: bool(one["with"]))


def _test(report: pytest.TestReport) -> dict[str, Any]:
    properties = properties_of(report)
    return {
        "test": report.nodeid,
        "finding": finding_in(report).value,
        "difference": str(properties.get("difference", "an error")),
        "text": report.longreprtext,
        "replay": properties.get("replay"),
        "stored": properties.get("stored"),
        "pictures": properties.get("pictures", []),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, of packages, and of the machine, by name.

    >>> list(versions())[:2]
    ['python', 'kvtwin']
    """
    found = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in PACKAGES.split():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found |= {name: "not installed"} if name == "kvtwin" else {}
    found["machine"] = f"{platform.platform()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        found["GPU"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found
