"""The results of a run: the table of functions and targets, and what failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from conformance.harness.contract import Contract
from conformance.harness.story import Verdict
from conformance.harness.targets import Target

WORDS: Final = {
    "crashes": "CRASHES",
    "hangs": "HANGS",
    "": "error",
    Verdict.WRONG_ANSWER.value: "wrong answers",
    Verdict.MISSING_REFUSAL.value: "missing refusals",
    Verdict.ROBUSTNESS.value: "robustness",
    Verdict.OTHER.value: "other differences",
}
"""The words of the table; the gravest first."""

TOLERATED: Final = [*WORDS][4:]


class Results:
    """Collects the reports of the plugin's tests; under pytest-xdist, in the controller."""

    def __init__(
        self, targets: Sequence[Target], contracts: Sequence[Contract], *, is_complete: bool
    ) -> None:
        self.targets, self.contracts, self.is_complete = targets, contracts, is_complete
        self.found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.num_others = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = properties_of(report)
        if not found:
            self.num_others += report.when == "call"
        elif report.when in {"call", "???"} or report.failed:
            found["is_failed"] = report.failed or hasattr(report, "wasxfail")
            found["num"] = found.get("examples", 0) * (not report.skipped)
            found |= {"seconds": report.duration, "node": report.nodeid}
            self.found[found["function"]].append(found)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        word = properties_of(report).get("verdict", "")
        is_shown = hasattr(report, "wasxfail") and word
        return (WORDS[word], "f", (word.upper(), {"yellow": True})) if is_shown else None

    def _failed(self) -> list[dict[str, Any]]:
        found = [one for function in sorted(self.found) for one in self.found[function]]
        failed = [one for one in found if one["is_failed"]]
        return [one | other for one in failed for other in ({}, *one.get("others", ()))]

    def _cell(self, contract: Contract, target: Target) -> str:
        if not target.offers(*contract.names):
            return "absent"
        found = [one for one in self.found[contract.function] if one["target"] == target.name]
        verdicts = {one.get("verdict", "") for one in found if one["is_failed"]}
        number = sum(one["num"] for one in found)
        failed = ", ".join(word for verdict, word in WORDS.items() if verdict in verdicts)
        if failed or not number:
            is_unsupported = any(one.get("unsupported") for one in found)
            return failed or ("not checkable" if is_unsupported else "not run")
        known = {one.function for one in target.implementation.deviations}
        return f"{'deviates' if contract.function in known else 'conforms'} ({number:,})"

    def rows(self) -> Iterator[list[str]]:
        for contract in self.contracts:
            if self.found[contract.function]:
                cells = [self._cell(contract, target) for target in self.targets]
                seconds = sum(one["seconds"] for one in self.found[contract.function])
                yield [contract.function, *cells, f"{seconds:.1f} s"]

    def causes(self) -> list[dict[str, Any]]:
        """Return one failure of each cause, the gravest first.

        In an engine, functions of one module share the cause if they get the same field wrong, or
        leave out any.
        """
        found: dict[Any, dict[str, Any]] = {}
        for one in sorted(self._failed(), key=gravity):
            cause = tuple(one.get("cause") or (one["function"], one["target"], one["check"]))
            function, kind, field = cause
            if one.get("severity") and "." in field:
                left_out = kind.endswith("NoneType")
                cause = (one["node"].partition("::")[0], kind, "" if left_out else field)
            first = found.setdefault(cause, one)
            known = [first["function"], *first.get("cause", ())[-1:], *first.get("also", ())]
            more = [name for name in (field, function) if name not in known]
            if more and first.get("severity"):
                first["also"] = [*first.get("also", ()), *more]
        return [*found.values()]

    def notes(self) -> Iterator[str]:
        for target in self.targets:
            if not target.implementation.adapter.validates:
                yield f"not checked on {target.name}: refusals (declared)"
            for mode in sorted(target.implementation.adapter.unsupported_modes):
                yield f"not checked on {target.name}: calls under {mode} (declared)"
        functions = [contract.function for contract in self.contracts]
        for implementation in dict.fromkeys(target.implementation for target in self.targets):
            yield from implementation.lacking_lines(functions)
        counts: Counter[tuple[str, str, str]] = Counter()
        for function, found in self.found.items():
            for one in found:
                for reason, number in one.get("unsupported", ()):
                    counts[function, one["target"], reason] += number
        for (function, where, reason), number in sorted(counts.items()):
            yield f"not supported: {function} on {where}, {number:,} examples: {reason}"

    def _failure_lines(self) -> Iterator[str]:
        for found in self.causes():
            verdict = found.get("verdict", "")
            where = f"{found['function']} on {found['target']}"
            line = found.get("line", f"{where}: an error in the run")
            severity = f" [{found['severity']}]" if found.get("severity") else ""
            yield f"{verdict if verdict in TOLERATED else 'FAILS'}: {line}{severity}"
            if "also" in found:
                yield f"  likewise: {', '.join(found['also'])}"
            if "replay" in found:
                yield f"  replay: {found['replay']}"

    def _missing_lines(self) -> Iterator[str]:
        for contract in self.contracts if self.is_complete else ():
            found = self.found[contract.function]
            met = {name for one in found for name in one.get("hard_cases", ())}
            is_right = found and not any(one["is_failed"] for one in found)
            for name in contract.hard_cases if is_right else ():
                if name not in met:
                    yield f"hard case not drawn: {contract.function}: {name}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that drew no example of a hard case, or that checked nothing."""
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.stats.get("failed", []).sort(key=lambda one: gravity(properties_of(one)))
        is_over = session.exitstatus == pytest.ExitCode.OK and not session.shouldstop
        if not is_over or session.config.option.collectonly:
            return
        num = sum(one["num"] for found in self.found.values() for one in found)
        if any(self._missing_lines()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif not num and not self._failed() and not self.num_others:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not any(self.found.values()):
            for target in self.targets:
                lacks = [one.function for one in self.contracts if not target.offers(*one.names)]
                if lacks and len(lacks) == len(self.contracts):
                    words = ", ".join(lacks)
                    terminalreporter.write_line(f"{target.implementation.name} lacks {words}")
            return
        terminalreporter.section("conformance")
        head = ["function", *(target.name for target in self.targets), "time"]
        rows = [head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            terminalreporter.write_line("  ".join(map(str.ljust, row, widths)).rstrip())
        for line in self.notes():
            terminalreporter.write_line(line)
        for line in [*self._failure_lines(), *self._missing_lines()]:
            terminalreporter.write_line(line, red=line.startswith(("FAILS", "hard case")))
        if not all(one.get("is_fatal", True) for one in self._failed()):
            terminalreporter.write_line("only wrong answers fail the run, others with --strict")


def gravity(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found.get("gravity", (9, 9)))


def properties_of(report: Any) -> dict[str, Any]:
    found = dict(getattr(report, "user_properties", ()))
    return found if "check" in found else {}
