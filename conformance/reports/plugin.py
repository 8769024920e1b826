"""The reporting part of the pytest plugin: reports, statistics, and the last run's coverage."""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conformance.coverage.goals import Coverage
from conformance.reports import prepare_folder, write_reports
from conformance.reports.last_run import remember
from conformance.reports.record import RunInfo, record_of
from conformance.reports.sizes import axes_of, lines_without_axes, size_lines
from conformance.reports.statistics import added, collecting, statistics_lines
from conformance.results.outcomes import properties_of
from conformance.results.run import CHECKED, Run


def add_report_options(group: pytest.OptionGroup) -> None:
    """Add the options of reports."""
    group.addoption(
        "--report",
        type=Path,
        metavar="DIR",
        help="write report.json, report.md and report.html into this folder",
    )


class Reporting:
    """Observes a run, and reports on it at its end.

    Args:
        config: Pytest's.
        run: The run.
        coverage: The coverage of the run.

    Raises:
        OSError: The folder of the reports cannot be written.
    """

    def __init__(self, config: pytest.Config, run: Run, coverage: Coverage) -> None:
        self.config, self.run, self.coverage = config, run, coverage
        self.is_worker = hasattr(config, "workerinput")
        self.folder: Path | None = config.getoption("--report")
        if self.folder is not None and not self.is_worker:
            self.folder = self.folder.resolve()
            prepare_folder(self.folder)
        self.clock = time.perf_counter()
        trace = config.getoption("trace_file")
        self.info = RunInfo(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command=[str(argument) for argument in config.invocation_params.args],
            seed=str(config.getoption("--hypothesis-seed")) if run.profile.is_random else None,
            trace=None if trace is None else str(trace),
            workers=int(getattr(config.option, "numprocesses", None) or 0),
        )
        self.report_error = ""

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Collect Hypothesis' statistics of a check, inside Hypothesis' own plugin."""
        if CHECKED not in item.stash:
            return (yield)
        with collecting(item):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests, and note failures of tests that are not checks."""
        if report.when == "call" or report.outcome != "passed":
            self.info.tests[report.outcome] += 1
        if report.failed and "function" not in properties_of(report):
            self._note_error(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note errors of collection."""
        if report.failed:
            self._note_error(report)

    def _note_error(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        error = {"where": report.nodeid or "the run", "message": report.longreprtext}
        if error not in self.info.errors:  # each worker collects everything
            self.info.errors.append(error)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Write the reports and remember the coverage, after all other hooks."""
        result = yield
        if not self.is_worker and not self.config.getoption("collectonly"):
            if not self.run.is_replay:
                remember(self.config, self.run, self.coverage, self.info.started)
            if self.folder is not None:
                self.info.seconds = time.perf_counter() - self.clock
                self.info.exit_status = status_words(session.exitstatus)
                record = record_of(self.run, self.coverage, self.info)
                try:
                    write_reports(record, self.folder)
                except OSError as error:
                    self.report_error = str(error)
                    if session.exitstatus == pytest.ExitCode.OK:
                        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the statistics and the path of the reports."""
        found: dict[str, list[dict[str, float]]] = {}
        for (function, _), reports in self.run.outcomes.items():
            drawn = [
                properties_of(report)["statistics"]
                for report in reports
                if "statistics" in properties_of(report)
            ]
            found[function] = found.get(function, []) + drawn
        statistics = {function: added(drawn) for function, drawn in found.items() if drawn}
        if statistics:
            show_all = self.config.getoption("--hypothesis-show-statistics")
            terminalreporter.section("examples that Hypothesis drew")
            for line in statistics_lines(statistics, show_all=bool(show_all)):
                terminalreporter.write_line(line)
        if self.folder is not None:
            functions = sorted(self.coverage.axes)
            table = [{"name": name, "axes": axes_of(self.coverage, name)} for name in functions]
            terminalreporter.section("sizes: examples in each band of each size axis")
            without = lines_without_axes(function for function, _ in self.run.outcomes)
            for line in (*size_lines(table), *without):
                terminalreporter.write_line(line)
        if self.report_error:
            terminalreporter.write_line(f"no report: {self.report_error}", red=True)
        elif self.folder is not None:
            terminalreporter.write_line(f"report: {self.folder / 'report.html'}")


def status_words(status: int) -> str:
    """Describe an exit status; `pytest.exit` may set any.

    >>> status_words(1), status_words(77)
    ('tests failed', 'status 77')
    """
    names = {code.value: code.name.lower().replace("_", " ") for code in pytest.ExitCode}
    return names.get(int(status), f"status {int(status)}")
