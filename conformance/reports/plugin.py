"""The reporting part of the pytest plugin: `--report` writes the record of a run at its end."""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conformance.coverage.goals import Coverage
from conformance.reports.files import prepare_folder
from conformance.reports.pages import write_reports
from conformance.reports.record import record_of
from conformance.results.outcomes import properties_of
from conformance.results.run import Run


def add_report_options(group: pytest.OptionGroup) -> None:
    """Add the options of reports."""
    group.addoption(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.json, report.md and report.html into this folder",
    )


class Reporting:
    """Observes a run, and reports on it at its end; raises `OSError` if that cannot be written."""

    def __init__(self, config: pytest.Config, run: Run, coverage: Coverage, folder: Path) -> None:
        self.config, self.run, self.coverage = config, run, coverage
        self.folder = folder.resolve()
        prepare_folder(self.folder)
        self.clock = time.perf_counter()
        self.tests = dict.fromkeys(("passed", "failed", "skipped"), 0)
        self.errors: list[dict[str, str]] = []  # failures other than checks
        self.report_error = ""
        self.about = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": [str(argument) for argument in config.invocation_params.args],
            "profile": run.profile.name,
            "seed": str(config.getoption("--hypothesis-seed")) if run.profile.is_random else None,
            "functions": None if run.functions is None else list(run.functions),
            "tests": self.tests,
            "errors": self.errors,
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests, and note failures of tests that are not checks."""
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.outcome] += 1
        if report.failed and "function" not in properties_of(report):
            self._note_error(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note errors of collection."""
        if report.failed:
            self._note_error(report)

    def _note_error(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        error = {"where": report.nodeid or "the run", "message": report.longreprtext}
        if error not in self.errors:  # each worker collects everything
            self.errors.append(error)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Write the reports, after all other hooks."""
        result = yield
        if not self.config.getoption("collectonly"):
            names = {code.value: code.name.lower().replace("_", " ") for code in pytest.ExitCode}
            status = names.get(int(session.exitstatus), f"status {int(session.exitstatus)}")
            seconds = round(time.perf_counter() - self.clock, 3)
            ended = {"seconds": seconds, "exit_status": status}
            record = record_of(self.run, self.coverage, {**self.about, **ended})
            try:
                write_reports(record, self.folder)
            except OSError as error:
                self.report_error = str(error)
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the path of the reports."""
        if self.report_error:
            terminalreporter.write_line(f"no report: {self.report_error}", red=True)
        else:
            terminalreporter.write_line(f"report: {self.folder / 'report.html'}")
