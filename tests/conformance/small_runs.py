"""Small conformance runs, which tests of the harness make in this process."""

from __future__ import annotations

import hypothesis.core
import pytest

import conformance.conftest
import conformance.contracts.check
from conformance.coverage.goals import Coverage

HEAD = """
from hypothesis import strategies as st
from conformance.contracts.check import property_check

def digits(preset):
    return st.integers(0, 9)
"""
"""The first lines of a module of toy checks."""


class Runner:
    """Makes small conformance runs, in this process if possible.

    Args:
        pytester: Pytest's own fixture.
        monkeypatch: Likewise.
        options: Of every run.
    """

    def __init__(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str
    ) -> None:
        self.pytester, self.monkeypatch, self.options = pytester, monkeypatch, options
        pytester.makeconftest("from conformance.conftest import *  # noqa: F403")
        # A run in this process must neither count with this process' nor leave it a seed.
        monkeypatch.setattr(hypothesis.core, "global_force_seed", None)

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest in this process, with its own coverage."""
        coverage = Coverage()
        self.monkeypatch.setattr(conformance.contracts.check, "COVERAGE", coverage)
        self.monkeypatch.setattr(conformance.conftest, "COVERAGE", coverage)
        return self.pytester.runpytest_inprocess(*self.options, *arguments)
