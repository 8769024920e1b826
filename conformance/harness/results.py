"""The results of a run: the table of functions and targets, and what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from conformance.harness.contract import Contract
from conformance.harness.story import Verdict
from conformance.harness.targets import Target

PLURALS: Final = {
    Verdict.WRONG_ANSWER.value: "wrong answers",
    Verdict.MISSING_REFUSAL.value: "missing refusals",
    Verdict.ROBUSTNESS.value: "robustness",
    Verdict.OTHER.value: "other differences",
}
"""The words of the table; the gravest first."""

ENDS: Final = {"crashes": "CRASHES", "hangs": "HANGS"}

NUM_TEXTS: Final = 3
"""How many failures that do not fail the run are shown in full."""


class Results:
    """Collects the reports of the plugin's tests; under pytest-xdist, in the controller.

    Args:
        targets: The targets under test.
        contracts: All contracts.
        functions: The functions to test; None for all.
        is_complete: Whether every hard case must be drawn.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        contracts: Sequence[Contract],
        functions: Sequence[str] | None,
        *,
        is_complete: bool,
    ) -> None:
        self.targets, self.is_complete = targets, is_complete
        self.contracts = [c for c in contracts if functions is None or c.function in functions]
        self.reports: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self.num_others = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the report of a test."""
        found = properties_of(report)
        if not found:
            self.num_others += report.when == "call"
        elif report.when in {"call", "???"} or report.failed:
            self.reports[found["function"], found["target"]].append(report)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        """Show the verdict of a failure that does not fail the run."""
        found = properties_of(report)
        if not found or not hasattr(report, "wasxfail"):
            return None
        word = str(found["verdict"])
        return PLURALS[word], "f", (word.upper(), {"yellow": True})

    def _failed(self, function: str, target: str) -> list[dict[str, Any]]:
        reports = self.reports.get((function, target), ())
        return [
            {"verdict": "", **properties_of(report)}
            for report in reports
            if report.failed or hasattr(report, "wasxfail")
        ]

    def _num_examples(self, function: str, target: str) -> int:
        """Return how many examples were drawn or replayed."""
        found = [properties_of(report) for report in self.reports.get((function, target), ())]
        replayed: int = sum("replay" == each["check"] for each in found)
        drawn: int = sum(each.get("examples", 0) for each in found)
        return replayed + drawn

    def _cell(self, contract: Contract, target: Target) -> str:
        """Return what the table says of a function on a target."""
        function, name = contract.function, target.name
        if not target.offers(function):
            return "absent"
        reports = self.reports.get((function, name), ())
        failed = self._failed(function, name)
        ends = [ENDS[found["end"]] for found in failed if found.get("end") in ENDS]
        if ends:
            return ends[0]
        if failed:
            verdicts = {found["verdict"] for found in failed}
            words = [word for verdict, word in PLURALS.items() if verdict in verdicts]
            return ", ".join(words) or "error"
        if not reports:
            return "-"
        if all(report.skipped for report in reports):
            return "not run"
        examples = self._num_examples(function, name)
        return f"conforms ({examples:,})" if examples else "not checkable"

    def _table(self) -> Iterator[str]:
        """Yield the lines of the table, without functions that no target has."""
        names = {function for function, _ in self.reports}
        rows = [["function", *(target.name for target in self.targets), "time"]]
        for contract in sorted(self.contracts, key=lambda contract: contract.function):
            cells = [self._cell(contract, target) for target in self.targets]
            reports = [self.reports.get((contract.function, t.name), ()) for t in self.targets]
            seconds = sum(report.duration for each in reports for report in each)
            if contract.function in names:
                rows.append([contract.function, *cells, f"{seconds:.1f} s"])
            elif "absent" in cells:
                rows.append([contract.function, *cells, ""])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()

    def _failure_lines(self) -> Iterator[str]:
        """Yield a line for each failed test, and the command that replays it."""
        for key in sorted(self.reports):
            for found in self._failed(*key):
                is_wrong = found["verdict"] == Verdict.WRONG_ANSWER.value
                word = "FAILS" if is_wrong or not found["verdict"] else found["verdict"]
                yield f"{word}: {found.get('line', f'{key[0]} on {key[1]}: an error in the run')}"
                if found.get("replay"):
                    yield f"  replay: {found['replay']}"
                if found.get("stored"):
                    yield f"  stored: {found['stored']}"

    def _missing_lines(self) -> Iterator[str]:
        """Yield a line for each hard case that no example was, in a run that must draw all."""
        for contract in self.contracts if self.is_complete else ():
            keys = [(contract.function, target.name) for target in self.targets]
            found = [properties_of(report) for key in keys for report in self.reports.get(key, ())]
            met = {name for each in found for name in str(each.get("hard_cases", "")).split(",")}
            has_failed = any(self._failed(*key) for key in keys)
            for name in contract.hard_cases if found and not has_failed else ():
                if name not in met:
                    yield f"hard case not drawn: {contract.function}: {name}"

    def _has_checked(self) -> bool:
        keys = list(self.reports)
        return any(self._failed(*key) or self._num_examples(*key) for key in keys)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that drew no example of a hard case, or that checked nothing."""
        is_over = session.exitstatus == pytest.ExitCode.OK and not session.shouldstop
        if not is_over or session.config.option.collectonly:
            return
        if any(self._missing_lines()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not self._has_checked() and not self.num_others:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, and a line for each failure."""
        if not self.reports:
            return
        expected = [r for each in self.reports.values() for r in each if hasattr(r, "wasxfail")]
        if expected:
            terminalreporter.section("what does not fail the run")
        for report in expected[:NUM_TEXTS]:
            terminalreporter.write_line(f"{report.longrepr}\n")
        terminalreporter.section("functions")
        for line in self._table():
            terminalreporter.write_line(line)
        for target in self.targets:
            if not target.implementation.adapter.validates:
                terminalreporter.write_line(f"not checked on {target.name}: refusals (declared)")
        for line in [*self._failure_lines(), *self._missing_lines()]:
            terminalreporter.write_line(line, red=line.startswith(("FAILS", "hard case")))
        counts = Counter(found["verdict"] for key in self.reports for found in self._failed(*key))
        if expected:
            words = ", ".join(
                f"{counts[key]} {word}" for key, word in PLURALS.items() if counts[key]
            )
            terminalreporter.write_line(f"tests with {words}; only wrong answers fail the run")


def properties_of(report: Any) -> dict[str, Any]:
    """Return the properties of a report of the plugin; nothing for another report."""
    found = dict(report.user_properties)
    return found if "check" in found else {}
