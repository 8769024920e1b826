"""Hooks around each test: they skip what is absent, and report what fails."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.adapters import Unsupported
from conformance.cases.check import CaseCheck
from conformance.cases.compared import case_of_failure
from conformance.corpus import add_to_corpus
from conformance.crashes import RERUN, Crash, properties_of_death
from conformance.gpu_context import ContextLostError
from conformance.implementations import Absent
from conformance.progress import PROGRESS
from conformance.properties import FAILURES, Check
from conformance.report import Mismatch, first_line
from conformance.reports.failure import describe_failure
from conformance.reproduction import attach_reproduction, forget_reproduction, replay_command
from conformance.shrinking import ShrinkBudgets, without_shrink_warning
from conformance.stateful.check import StatefulCheck
from conformance.summary import CHECKED, Run
from conformance.targets import LOOKED_UP, RAISED

WHERE = pytest.StashKey[str]()
"""Where an item's check stands, as the corpus names it."""


class FailureHooks:
    """Skips and reports the tests of a run.

    Args:
        config: Pytest's.
        run: The run.
    """

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.shrink_budgets = ShrinkBudgets(run.profile.shrink_seconds)
        self._folder = config.getoption("--failures")
        self._stores = config.getoption("--corpus-add")
        self._reports = config.getoption("--report") is not None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        """Skip a check that needs what is absent; report one that fails."""
        if CHECKED not in item.stash:  # a plain test, such as those of the zoo
            try:
                return (yield)
            except (Absent, Unsupported) as missing:
                pytest.skip(str(missing))
        check, _ = item.stash[CHECKED]
        LOOKED_UP.clear()
        FAILURES.clear()
        forget_reproduction(item, self._folder)
        try:
            with self.shrink_budgets.limiting(
                check.function, uses_all=isinstance(check, StatefulCheck)
            ):
                result = yield
                unexplained = RERUN.unexplained()
                if unexplained is not None:
                    FAILURES.append(unexplained)
                    raise unexplained[-1]
                return result
        except (Absent, Unsupported) as missing:
            pytest.skip(str(missing))
        except (*RAISED, ContextLostError) as error:
            self._note_failure(item, error)
            if isinstance(error, ContextLostError):
                item.session.shouldfail = str(error)  # all tests after this one would fail too
            raise

    def _note_failure(self, item: pytest.Item, error: BaseException) -> None:
        """Note what a failed check used and what differs; store its example."""
        check, target = item.stash[CHECKED]
        last = {PROGRESS.function.decode()} if isinstance(error, Crash) else set()
        uses = ["*"] if isinstance(check, StatefulCheck) else sorted(LOOKED_UP | last)
        if isinstance(error, Mismatch):
            found = error.difference.line
        else:
            found = RERUN.line or first_line(error, check.description)
        failure = FAILURES[-1] if FAILURES else None
        item.user_properties += [
            ("uses", ",".join(uses)),
            ("difference", found),
        ]
        if RERUN.death is not None:
            item.user_properties += properties_of_death(RERUN.death)
        if self._reports:
            item.user_properties.append(("failure", describe_failure(failure, error)))
        if isinstance(check, CaseCheck):
            if check.path is not None:
                item.user_properties.append(("replay", replay_command(check.path, target)))
        elif failure is not None:
            where = item.stash.get(WHERE, "")
            attach_reproduction(item, target, failure, where, self._folder)
            if self._stores and WHERE in item.stash:
                item.user_properties.append(("stored", _store(item.stash[WHERE], failure)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Say how long an example was made smaller, where Hypothesis says "five minutes"."""
        report: pytest.TestReport = yield
        if CHECKED in item.stash:
            report.sections = [
                (head, without_shrink_warning(text) if head == "Hypothesis" else text)
                for head, text in report.sections
            ]
        return report


def _store(where: str, failure: tuple[Check, Any, BaseException]) -> str:
    """Put a failing example into the corpus, and return its file, or why there is none."""
    check, example, error = failure
    try:
        return str(add_to_corpus(case_of_failure(check, where, example, error)))
    except (TypeError, ValueError, OSError) as store_error:
        return f"cannot be stored: {store_error}"
