"""Hooks around each test: they skip what is absent, and report what fails."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.checks import FAILURES, Check
from conformance.corpus import add_failure
from conformance.gpu_context import ContextLostError
from conformance.implementations import Absent
from conformance.report import Mismatch
from conformance.reports.failure import describe_failure
from conformance.script import attach_script, forget_script
from conformance.shrinking import ShrinkBudgets, in_our_words
from conformance.stateful.check import StatefulCheck
from conformance.summary import CHECKED, Run
from conformance.targets import LOOKED_UP, RAISED
from conformance.vectors.kept import CaseCheck

WHERE = pytest.StashKey[str]()
"""Where an item's check stands, as the corpus names it."""


class FailureHooks:
    """Skips and reports the tests of a run.

    Args:
        config: Pytest's.
        run: The run.
    """

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._shrink_budgets = ShrinkBudgets(run.profile.shrink_seconds)
        self._scripts = config.getoption("--failures")
        self._keeps = config.getoption("--corpus-add")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Skip a check that needs what is absent; report one that fails."""
        if CHECKED not in item.stash:
            return (yield)
        check, _ = item.stash[CHECKED]
        LOOKED_UP.clear()
        FAILURES.clear()
        forget_script(item, self._scripts)
        try:
            with self._shrink_budgets.limiting(
                check.function, uses_all=isinstance(check, StatefulCheck)
            ):
                return (yield)
        except Absent as absent:
            pytest.skip(str(absent))
        except (*RAISED, ContextLostError) as error:
            self._note_failure(item, error)
            if isinstance(error, ContextLostError):
                item.session.shouldfail = str(error)  # all tests after this one would fail too
            raise

    def _note_failure(self, item: pytest.Item, error: BaseException) -> None:
        """Note what a failed check used and what differs; write its script; keep its example."""
        check, target = item.stash[CHECKED]
        uses = ["*"] if isinstance(check, StatefulCheck) else sorted(LOOKED_UP)
        found = error.difference.line if isinstance(error, Mismatch) else _first_line(error, check)
        failure = FAILURES[-1] if FAILURES else None
        item.user_properties += [
            ("uses", ",".join(uses)),
            ("difference", found),
            ("failure", describe_failure(failure, error)),
        ]
        if failure is not None:
            attach_script(item, target, failure, item.stash.get(WHERE, ""), self._scripts)
            if self._keeps and WHERE in item.stash:
                item.user_properties.append(("kept", _kept(item.stash[WHERE], failure)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Say how long an example was made smaller, where Hypothesis says "five minutes"."""
        report: pytest.TestReport = yield
        if CHECKED in item.stash:
            report.sections = [
                (head, in_our_words(text) if head == "Hypothesis" else text)
                for head, text in report.sections
            ]
        return report


def _kept(where: str, failure: tuple[Check, Any, BaseException]) -> str:
    """Put a failing example into the corpus, and return its file, or why there is none."""
    check, example, error = failure
    try:
        return str(add_failure(check, where, example, error))
    except (TypeError, ValueError, OSError) as trouble:
        return f"cannot be kept: {trouble}"


def _first_line(error: BaseException, check: Check | CaseCheck) -> str:
    told = str(error).strip() or check.description  # a plain `assert` may say nothing
    return f"{type(error).__name__}: {told.partition(chr(10))[0]}"
