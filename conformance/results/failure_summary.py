"""The failures that a terminal shows: the first of each function, in two screens.

A bug fails many tests: others of its function, and those of functions that use it. So only one test
of each function is shown, the one that is easiest to understand. `--all-failures` shows all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest

from conformance.harness.results import properties_of as report_of_harness
from conformance.results.outcomes import properties_of
from conformance.results.run import Run
from conformance.values.differences import Finding

SCREENS: Final = 64
"""Lines for the failures of all functions; if they are not enough, one failure is shown."""


COUNTED: Final = ("failed", *(finding.plural for finding in Finding))
"""The categories under which pytest counts failed tests."""


def add_failure_options(group: pytest.OptionGroup) -> None:
    """Add the option that shows everything."""
    group.addoption(
        "--all-failures",
        action="store_true",
        help="print every failed test in full, not only the first of each function",
    )


class FailureSummary:
    """Chooses the failed tests that pytest prints.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, Any, Any]:
        """Let pytest print the failures that are to be read first, and count all of them."""
        stats = terminalreporter.stats
        counted = {word: stats.pop(word) for word in COUNTED if word in stats}
        failed = [report for reports in counted.values() for report in reports]
        if not failed:
            return (yield)
        shows_all = terminalreporter.config.getoption("--all-failures")
        stats["failed"] = failed if shows_all else self._shown(failed)
        try:
            return (yield)
        finally:
            del stats["failed"]
            stats.update(counted)

    def _shown(self, failed: list[pytest.TestReport]) -> list[pytest.TestReport]:
        """Return the first failure of each function, as many as fit, and at least one."""
        ours = [report for report in failed if not report_of_harness(report)]
        theirs = [report for report in failed if report_of_harness(report) and report.failed]
        return [*(self._shown_of_ours(ours) if ours else ()), *theirs]

    def _shown_of_ours(self, failed: list[pytest.TestReport]) -> list[pytest.TestReport]:
        firsts = self.run.first_failures()
        others = [report for report in failed if "function" not in properties_of(report)]
        if not firsts:
            firsts = [others] if others else [failed]
        shown: list[pytest.TestReport] = []
        num_lines = 0
        for tests in firsts:
            report = tests[0]
            length = len(report.longreprtext.splitlines()) + 3
            if shown and num_lines + length > SCREENS:
                break
            num_lines += length
            shown.append(_with_note(report, tests[1:]))
        return shown


def _with_note(report: pytest.TestReport, others: list[pytest.TestReport]) -> pytest.TestReport:
    """Return a failure with a line about the other tests of its function."""
    if others and isinstance(report.longrepr, str):
        kinds = Counter(str(properties_of(other).get("kind", "other")) for other in others)
        named = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
        report.longrepr += (
            f"\n{len(others)} more tests of this function fail ({named}); "
            "--all-failures prints them."
        )
    return report
