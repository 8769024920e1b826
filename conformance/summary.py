"""A conformance run: its tests, their outcomes, and the lines of the terminal summary."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from conformance.differences import Finding
from conformance.goals import Coverage
from conformance.profiles import Kind

if TYPE_CHECKING:
    from conformance.cases.check import CaseCheck
    from conformance.implementations import Implementation
    from conformance.profiles import Profile
    from conformance.properties import Check
    from conformance.targets import Target


ORDER = [
    kind.value
    for kind in (
        Kind.SAME_ANSWER,
        Kind.SAME_REFUSAL,
        Kind.LAW,
        Kind.MEMORY,
        Kind.LARGE,
        Kind.CONDITIONS,
        Kind.THREADS,
        Kind.STATEFUL,
    )
]
"""Kinds of tests, those first whose failures are easiest to understand."""


class State(enum.Enum):
    """The state of a function on a target."""

    CONFORMS = "conforms"
    FAILS = "fails"
    FAILS_WITH = "fails with"
    ABSENT = "absent"
    DEVIATES = "deviates"
    NOT_CHECKABLE = "not checkable"
    NOT_RUN = "not run"


class Run:
    """One conformance run.

    Args:
        targets: The targets under test.
        profile: The numbers of examples.
        functions: The functions to check; None for all.

    Attributes:
        stored_cases: The stored cases of the corpus or, in a replay, of test vectors.
        is_replay: Whether only test vectors are replayed.
        has_threads: Whether importing the implementations started threads.
        unsupervised: Why a function that crashes ends the run; empty if it does not.
        absent: The names that a function needs and the implementation of a target lacks.
        collected: The collected tests of each function.
        with_kernel: The functions that must launch a kernel in the simulator.
        partial: The functions with tests that did not run; their coverage is not required.
        finished: The tests that ended.
        failed: The functions with a failed test.
        num_overlooked: The number of failed tests that do not fail the run.
        outcomes: The reports of each function on each target.
    """

    def __init__(
        self, targets: list[Target], profile: Profile, functions: Sequence[str] | None = None
    ) -> None:
        self.targets = targets
        self.profile = profile
        self.functions = functions
        self.stored_cases: Sequence[CaseCheck] = ()
        self.is_replay = False
        self.has_threads = False
        self.unsupervised = ""
        self.absent: dict[tuple[str, str], list[str]] = {}
        self.collected: defaultdict[str, set[str]] = defaultdict(set)
        self.with_kernel: set[str] = set()
        self.partial: set[str] = set()
        self.finished: set[str] = set()
        self.failed: set[str] = set()
        self.num_overlooked = 0
        self.outcomes: defaultdict[tuple[str, str], list[pytest.TestReport]] = defaultdict(list)

    @property
    def implementations(self) -> list[Implementation]:
        """The implementations under test."""
        found = [target.implementation for target in self.targets]
        return list({id(implementation): implementation for implementation in found}.values())

    @property
    def lacking(self) -> set[str]:
        """The selected functions that some implementation lacks."""
        return {function for function, _ in self.absent}

    def is_selected(self, function: str) -> bool:
        """Return whether the run checks a function."""
        return self.functions is None or function in self.functions

    def targets_of(self, check: Check | CaseCheck) -> list[Target]:
        """Return the targets that a check runs on, and note those that lack a name it needs."""
        found = []
        for target in filter(check.runs_on, self.targets):
            lacking = target.lacks(check.function)
            if not lacking:
                found.append(target)
            elif self.is_selected(check.function):
                self.absent[check.function, target.name] = lacking
        return found

    def to_record(self) -> dict[str, Any]:
        """Return what a worker collected as plain values, for the controller."""
        return {
            "absent": [[*key, names] for key, names in self.absent.items()],
            "collected": {name: sorted(nodes) for name, nodes in self.collected.items()},
            "with_kernel": sorted(self.with_kernel),
            "partial": sorted(self.partial),
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what a worker collected."""
        for function, target, names in record["absent"]:
            self.absent[function, target] = names
        for name, nodes in record["collected"].items():
            self.collected[name].update(nodes)
        self.with_kernel.update(record["with_kernel"])
        self.partial.update(record["partial"])

    def note(self, report: pytest.TestReport, function: str, target: str) -> None:
        """Note the outcome of a test of a function on a target."""
        self.outcomes[function, target].append(report)
        if report.failed:
            self.failed.add(function)
            self.num_overlooked += self.overlooked(report) is not None
        if report.skipped:
            self.partial.add(function)
        if report.when == "call":
            self.finished.add(report.nodeid)

    def complete_functions(self) -> list[str]:
        """Return the functions whose tests all ran and passed."""
        return [
            name
            for name, nodes in sorted(self.collected.items())
            if nodes <= self.finished and name not in self.partial | self.failed
        ]

    def lacks_coverage(self, coverage: Coverage) -> bool:
        """Return whether the run fails because of its coverage."""
        return bool(list(self.unreached_lines(coverage)))

    def unreached_lines(self, coverage: Coverage) -> Iterable[str]:
        """Yield a line for each unreached goal, and for each check that ran nothing.

        A run that skipped all of its checks fails too.
        """
        reports = [report for each in self.outcomes.values() for report in each]
        if reports and all(report.skipped for report in reports):
            yield f"nothing was checked: all {len(reports)} checks were skipped"
        for name in self.complete_functions():
            for target in self.targets:
                ran = any(f"[{target.name}-" in node for node in self.collected[name])
                unsupported = coverage.unsupported_reasons(name, target.name)
                if ran and not coverage.examples[name, target.name] and not unsupported:
                    yield f"no example: {name} on {target.name}"
                if (
                    ran
                    and target.is_simulated
                    and name in self.with_kernel
                    and not coverage.launches[name]
                ):
                    yield f"no kernel was launched: {name} on {target.name}"
            if self.profile.requires_coverage:
                for goal in coverage.unreached(name):
                    yield f"coverage goal not reached: {name}: {goal}"

    def failing_with(self, function: str, target: str) -> list[str]:
        """Return the other functions whose failures may have caused those of a function.

        This is empty if a failing test of the function used no other function that fails.
        """
        if not self._needs_others(function, target):
            return []
        used = {name for _, names in self._failures(function, target) for name in names}
        return [
            other
            for other, where in self.outcomes
            if where == target and other in used and not self._needs_others(other, target)
        ]

    def _needs_others(self, function: str, target: str) -> bool:
        """Return whether each failing test of a function used another that fails as gravely."""
        return all(used for _, used in self._failures(function, target))

    def _failures(
        self, function: str, target: str
    ) -> list[tuple[pytest.TestReport, frozenset[str]]]:
        """Return the failed tests, each with the functions that it used and fail as gravely."""
        reports = self.outcomes.get((function, target), [])
        failed = [report for report in reports if report.failed]
        if not failed:
            return []
        weights = {
            name: self.findings(name, target)[0].weight
            for name in self.failed - {function}
            if self.findings(name, target)
        }
        found = []
        for report in failed:
            weight = finding_in(report).weight
            failing = {name for name, other in weights.items() if other >= weight}
            uses = str(properties_of(report).get("uses", "")).split(",")
            names = {name for use in uses for name in (use, _root(use))} - {_root(function)}
            found.append((report, frozenset(failing if "*" in names else failing & names)))
        return found

    def findings(self, function: str, target: str) -> list[Finding]:
        """Return what the failed tests of a function found, the gravest first."""
        reports = self.outcomes.get((function, target), [])
        found = {finding_in(report) for report in reports if report.failed}
        return [finding for finding in Finding if finding in found]

    def overlooked(self, report: pytest.TestReport) -> Finding | None:
        """Return what a failed test found, if it does not fail the run; else None."""
        properties = properties_of(report)
        finding = finding_in(report)
        if not report.failed or report.when != "call" or finding is Finding.WRONG_ANSWER:
            return None
        target = next(one for one in self.targets if one.name == properties["target"])
        return None if target.implementation.is_strict else finding

    def verdict(self, function: str, target: Target) -> tuple[State, list[str]]:
        """Return the state of a function on a target, and the functions that it fails with."""
        reports = self.outcomes.get((function, target.name), [])
        if any(report.failed for report in reports):
            others = self.failing_with(function, target.name)
            return (State.FAILS_WITH if others else State.FAILS), others
        if (function, target.name) in self.absent:
            return State.ABSENT, []
        if not reports:
            return State.NOT_RUN, []
        if all(report.skipped for report in reports):
            return State.NOT_CHECKABLE, []
        return (State.DEVIATES if target.deviations(function) else State.CONFORMS), []

    def state(self, function: str, target: Target, coverage: Coverage) -> str:
        """Return the table cell of a function and a target."""
        state, others = self.verdict(function, target)
        if state is State.CONFORMS and not coverage.examples[function, target.name]:
            state = State.NOT_CHECKABLE  # no example was supported
        words = {
            State.CONFORMS: f"conforms ({coverage.examples[function, target.name]:,})",
            State.FAILS: ", ".join(self._failing_words(function, target.name)),
            State.FAILS_WITH: f"fails with {', '.join(others[:1])}",
            State.DEVIATES: "deviates (declared)",
            State.NOT_RUN: "-",
        }
        return words.get(state, state.value)

    def _failing_words(self, function: str, target: str) -> list[str]:
        """Return what was found, with CRASHES or HANGS for wrong answers that are such."""
        failed = (properties_of(report) for report, _ in self._failures(function, target))
        ends = min((str(found["crash"]) for found in failed if "crash" in found), default="")
        words = [finding.plural for finding in self.findings(function, target)]
        return [ends, *words[1:]] if ends else words

    def table(self, coverage: Coverage) -> Iterable[str]:
        """Yield the lines of the summary table: functions by targets.

        What all targets lack is left out, unless it was asked for by name.
        """
        names = {name for name, _ in self.outcomes}
        functions = sorted(names if self.functions is None else names | self.lacking)
        rows = {
            function: [self.state(function, target, coverage) for target in self.targets]
            for function in functions
        }
        width = max(map(len, ["function", *functions]))
        widths = [
            max(22, len(target.name), *(len(cells[i]) for cells in rows.values()))
            for i, target in enumerate(self.targets)
        ]
        targets = [target.name for target in self.targets]
        heads = [name.ljust(w) for name, w in zip(targets, widths, strict=True)]
        yield "  ".join(["function".ljust(width), *heads, "goals", "time"])
        for function, cells in rows.items():
            seconds = sum(
                report.duration
                for name in targets
                for report in self.outcomes.get((function, name), [])
            )
            expected = coverage.expected.get(function, [])
            reached = f"{len(expected) - len(coverage.unreached(function))}/{len(expected)}"
            padded = [cell.ljust(w) for cell, w in zip(cells, widths, strict=True)]
            yield "  ".join([function.ljust(width), *padded, reached.rjust(5), f"{seconds:4.0f} s"])

    def failed_tests(self, function: str, target: str) -> list[pytest.TestReport]:
        """Return the failed tests of a function, those that are easiest to understand first.

        The gravest finding comes first, and the plain test of valid calls; among tests of one kind,
        those that use no other function, then tests of small examples, and tests that name the
        field that differs.
        """

        def rank(failure: tuple[pytest.TestReport, frozenset[str]]) -> tuple[bool | int | str, ...]:
            report, used = failure
            found = properties_of(report)
            kind = ORDER.index(found.get("kind", ORDER[-1]))
            is_error = re.match(r"\w+: ", str(found.get("difference", "Error: "))) is not None
            is_large = "minimal" not in report.nodeid
            gravity = -finding_in(report).weight
            return gravity, kind, bool(used), is_large, is_error, report.nodeid

        return [report for report, _ in sorted(self._failures(function, target), key=rank)]

    def notes(self, coverage: Coverage) -> Iterable[str]:
        """Yield lines about absent functions, and about what was not checked."""
        for one in self.targets:
            if not one.validates:
                yield f"not checked on {one.name}: that invalid calls are rejected (declared)"
        for implementation in self.implementations if self.functions is None else ():
            yield from implementation.lacking_lines()
        for (function, target), reports in sorted(self.outcomes.items()):
            reasons = {skip_reason(report) for report in reports if report.skipped}
            for reason in sorted(reasons):
                number = sum(report.skipped for report in reports)
                yield f"not checked: {function} on {target}, {number} of {len(reports)}: {reason}"
        for (function, target, reason), number in sorted(coverage.unsupported.items()):
            yield f"not supported: {function} on {target}, {number:,} examples: {reason}"

    def findings_line(self) -> str:
        """Return how many functions have each finding, and which findings fail the run."""
        found = {
            (finding, function)
            for function, target in self.outcomes
            if not self.failing_with(function, target)
            for finding in self.findings(function, target)
        }
        counts = Counter(finding for finding, _ in found)
        if not counts:
            return ""
        words = ", ".join(f"{counts[finding]} with {finding.plural}" for finding in Finding)
        is_strict = all(one.is_strict for one in self.implementations)
        rule = "all of them fail the run" if is_strict else "only wrong answers fail the run"
        return f"functions: {words}; {rule}" + ("" if is_strict else " (--strict: all)")

    def first_failures(self) -> list[list[pytest.TestReport]]:
        """Return the failed tests of each function that fails by itself, in the order of reading.

        Of a function that fails on several targets, those on the first are returned.
        """
        found: dict[str, list[pytest.TestReport]] = {}
        for target in self.targets:
            for function, where in self.outcomes:
                if where != target.name:
                    continue
                failed = self.failed_tests(function, where)
                if failed and not self.failing_with(function, where):
                    found.setdefault(function, failed)
        causes = Counter(
            cause
            for function, where in self.outcomes
            for cause in self.failing_with(function, where)
        )
        order = sorted(
            found, key=lambda f: (-causes[f], ORDER.index(properties_of(found[f][0])["kind"]))
        )
        return [found[function] for function in order]

    def failure_lines(self) -> Iterable[str]:
        """Yield a line with the first difference of each finding of each failing function."""
        for function, target in sorted(self.outcomes):
            failed = self.failed_tests(function, target)
            others = self.failing_with(function, target)
            if others:
                yield f"fails with {', '.join(others)}: {function} on {target}"
            for finding in () if others else self.findings(function, target):
                first = next(report for report in failed if finding_in(report) is finding)
                found = properties_of(first)
                word = "FAILS" if finding is Finding.WRONG_ANSWER else finding.value
                yield f"{word}: {function} on {target}: {found.get('difference', 'an error')}"
                for name in ("script", "replay"):
                    if name in found:
                        yield f"  {name}: {found[name]}"
            stored = [properties_of(report).get("stored") for report in failed]
            for path in dict.fromkeys(filter(None, stored)):
                yield f"  stored: {path}"


def _root(name: str) -> str:
    """Return the class of a method, or the name of a function."""
    return name.partition(".")[0]


def properties_of(report: pytest.TestReport) -> dict[str, Any]:
    """Return the user properties of a test."""
    return dict(report.user_properties)


def finding_in(report: pytest.TestReport) -> Finding:
    """Return what a failed test found."""
    return Finding(properties_of(report).get("finding", Finding.WRONG_ANSWER.value))


def skip_reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    found = report.longrepr
    return found[2].removeprefix("Skipped: ") if isinstance(found, tuple) else str(found)


RUN = pytest.StashKey[Run]()
"""The run, in pytest's configuration."""
CHECKED: pytest.StashKey[tuple[Any, Any]] = pytest.StashKey()
"""An item's check, a `Check` or a `CaseCheck`, and its target."""
