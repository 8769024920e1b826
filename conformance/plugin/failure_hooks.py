"""Hooks around each test, which skip tests of absent functions and report failures."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import pytest

from conformance.adapters import Unsupported
from conformance.cases.failures import (
    forget_failure,
    replay_command,
    rerun_command,
    store_failure,
)
from conformance.cases.replay import CaseCheck
from conformance.cases.store import add_to_corpus, case_of_failure
from conformance.contracts.check import FAILURES, Check
from conformance.execution.crashes import RERUN, Crash, NotTriedError, properties_of_end
from conformance.execution.gpu_context import ContextLostError
from conformance.generation.shrinking import SHRINK_NOTE, WARNING, ShrinkBudgets
from conformance.messages.formatting import INDENT, printable, shortened
from conformance.reports.picture import pictures_of_failure
from conformance.results.called_functions import called_functions
from conformance.results.failure_text import (
    difference_of,
    failure_text,
    is_flaky,
    text_of_other_test,
)
from conformance.results.run import CHECKED, Run
from conformance.stateful.check import StatefulCheck
from conformance.targets.implementations import Absent
from conformance.targets.progress import PROGRESS
from conformance.targets.target import LOOKED_UP, RAISED, Target
from conformance.values.differences import Finding, finding_of

WHERE = pytest.StashKey[str]()
"""The location of an item's check, as in stored cases."""

TEXT = pytest.StashKey[str]()
"""The report text of a failed item."""

NUM_CAPTURED = 12
"""Lines of a failed test's own output that are shown."""


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
        """Skip a check of an absent or unsupported function; report one that fails."""
        if CHECKED not in item.stash:  # a plain test, such as those of the zoo
            try:
                return (yield)
            except (Absent, Unsupported) as missing:
                pytest.skip(str(missing))
        check, _ = item.stash[CHECKED]
        LOOKED_UP.clear()
        FAILURES.clear()
        forget_failure(item, self._folder)
        try:
            with self.shrink_budgets.limiting(
                check.function, uses_all=isinstance(check, StatefulCheck)
            ):
                result = None
                with contextlib.suppress(NotTriedError):
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
        """Record the functions that a failed check used, and its difference; store its example."""
        check, target = item.stash[CHECKED]
        failure = FAILURES[-1] if FAILURES else None
        uses = {"*"} if isinstance(check, StatefulCheck) else set(LOOKED_UP)
        if isinstance(error, Crash):
            uses.add(PROGRESS.function.decode())
        elif failure is not None and not isinstance(error, ContextLostError):
            uses |= called_functions(target, failure[1])
        item.user_properties += [
            ("uses", ",".join(sorted(uses))),
            ("difference", difference_of(error, check)),
            ("finding", _finding_of(error).value),
        ]
        if RERUN.process_end is not None:
            item.user_properties += properties_of_end(RERUN.process_end)
        if self._reports and failure is not None:
            item.user_properties.append(("pictures", pictures_of_failure(*failure[1:])))
        if isinstance(check, CaseCheck):
            if check.path is not None:
                item.user_properties.append(("replay", replay_command(check.path, target)))
        elif failure is not None:
            where = item.stash.get(WHERE, "")
            store_failure(item, target, failure, where, self._folder)
            if self._stores and WHERE in item.stash:
                item.user_properties.append(("stored", _store(item.stash[WHERE], failure)))
        properties = dict(item.user_properties)
        again = [str(properties.get("replay") or rerun_command(item, target))]
        if "expression" in properties:
            again.append(str(properties["expression"]))
        item.stash[TEXT] = failure_text(check, target, failure, error, again)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Report a failed check by its own text, without that of pytest and Hypothesis."""
        report = self._report_of(item, call, (yield))
        report.user_properties = printable(report.user_properties)
        report.sections = printable(report.sections)
        shown = report.longreprtext
        if isinstance(report.longrepr, str | tuple):
            report.longrepr = printable(report.longrepr)
        elif printable(shown) != shown:  # pytest's own, with colors
            report.longrepr = printable(shown)
        return report

    @staticmethod
    def _report_of(
        item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> pytest.TestReport:
        if report.when != "call" or not report.failed or call.excinfo is None:
            return report
        target = getattr(getattr(item, "callspec", None), "params", {}).get("target")
        if TEXT not in item.stash and isinstance(target, Target):  # a test without examples
            statement = " ".join(str(item.obj.__doc__).split())  # type: ignore[attr-defined]
            again = rerun_command(item, target)
            text = text_of_other_test(item.name, statement, call.excinfo.value, again)
            item.stash[TEXT] = text
        if TEXT not in item.stash:
            return report
        if item.config.option.fulltrace:
            return report
        report.longrepr = item.stash[TEXT]
        if any(WARNING.search(text) for _, text in report.sections):
            report.longrepr += f"\n{SHRINK_NOTE}"
            if CHECKED in item.stash:
                report.longrepr += f":\n{INDENT}{rerun_command(item, item.stash[CHECKED][1])}"
        report.sections = [
            (head, "\n".join(shortened(text.splitlines(), NUM_CAPTURED)))
            for head, text in report.sections
            if head != "Hypothesis" and not WARNING.search(text)
        ]
        return report


def _finding_of(error: BaseException) -> Finding:
    return Finding.WRONG_ANSWER if is_flaky(error) else finding_of(error)


def _store(where: str, failure: tuple[Check, Any, BaseException]) -> str:
    """Put a failing example into the corpus, and return its file, or why there is none."""
    check, example, error = failure
    try:
        return str(add_to_corpus(case_of_failure(check, where, example, error)))
    except (TypeError, ValueError, OSError) as store_error:
        return f"cannot be stored: {store_error}"
