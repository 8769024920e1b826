"""The tests of a conformance run, their outcomes, and which failure explains which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from conformance.coverage.goals import Coverage
from conformance.values.differences import Finding

if TYPE_CHECKING:
    from conformance.cases.replay import CaseCheck
    from conformance.contracts.check import Check
    from conformance.generation.profiles import Profile
    from conformance.targets.implementations import Implementation
    from conformance.targets.target import Target


class Outcomes:
    """The tests of a conformance run, and their outcomes.

    Args:
        targets: The targets under test.
        profile: The numbers of examples.
        functions: The functions to check; None for all.

    Attributes:
        stored_cases: The stored cases of the corpus or, in a replay, of `--replay`.
        is_replay: Whether only the cases of `--replay` run.
        is_whole: Whether it is a run of everything: only then must coverage goals be reached.
        has_threads: Whether importing the implementations started threads.
        unsupervised: Why a function that crashes ends the run; empty if it does not.
        absent: The names that a function needs and the implementation of a target lacks.
        collected: The collected tests of each function.
        with_kernel: The functions that must launch a kernel in the simulator.
        partial: The functions with tests that did not run; their coverage is not required.
        finished: The tests that ended.
        failed: The functions with a failed test.
        num_tolerated: The number of failed tests that do not fail the run.
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
        self.is_whole = True
        self.has_threads = False
        self.unsupervised = ""
        self.absent: dict[tuple[str, str], list[str]] = {}
        self.collected: defaultdict[str, set[str]] = defaultdict(set)
        self.with_kernel: set[str] = set()
        self.partial: set[str] = set()
        self.finished: set[str] = set()
        self.failed: set[str] = set()
        self.num_tolerated = 0
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
        """Return a worker's collected data as plain values, for the controller."""
        return {
            "absent": [[*key, names] for key, names in self.absent.items()],
            "collected": {name: sorted(nodes) for name, nodes in self.collected.items()},
            "with_kernel": sorted(self.with_kernel),
            "partial": sorted(self.partial),
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a worker's collected data."""
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
            self.num_tolerated += self.tolerated(report) is not None
        if report.skipped:
            self.partial.add(function)
        if report.when == "call":
            self.finished.add(report.nodeid)

    @property
    def requires_coverage(self) -> bool:
        """Whether a coverage goal that no example reached fails the run."""
        return self.is_whole and self.profile.requires_coverage

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
            if self.requires_coverage:
                for goal in coverage.unreached(name):
                    yield f"coverage goal not reached: {name}: {goal}"

    def failing_with(self, function: str, target: str) -> list[str]:
        """Return the other functions whose failures may have caused those of a function.

        This is empty if a failing test of the function used no other function that fails.
        """
        if not self._needs_others(function, target):
            return []
        used = {name for _, names in self.failures(function, target) for name in names}
        return [
            other
            for other, where in self.outcomes
            if where == target and other in used and not self._needs_others(other, target)
        ]

    def _needs_others(self, function: str, target: str) -> bool:
        """Return whether each failing test of a function used one that fails as gravely or more."""
        return all(used for _, used in self.failures(function, target))

    def failures(
        self, function: str, target: str
    ) -> list[tuple[pytest.TestReport, frozenset[str]]]:
        """Return the failed tests, each with the functions it used that fail as gravely or more."""
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
        """Return the findings of the failed tests of a function, the most severe first."""
        reports = self.outcomes.get((function, target), [])
        found = {finding_in(report) for report in reports if report.failed}
        return [finding for finding in Finding if finding in found]

    def tolerated(self, report: pytest.TestReport) -> Finding | None:
        """Return the finding of a failed test, if it does not fail the run; else None."""
        properties = properties_of(report)
        finding = finding_in(report)
        if not report.failed or report.when != "call" or finding is Finding.WRONG_ANSWER:
            return None
        target = next(one for one in self.targets if one.name == properties["target"])
        return None if target.implementation.is_strict else finding


def _root(name: str) -> str:
    """Return the class of a method, or the name of a function."""
    return name.partition(".")[0]


def properties_of(report: pytest.TestReport) -> dict[str, Any]:
    """Return the user properties of a test; nothing for those of `conformance.harness`."""
    found = dict(report.user_properties)
    return {} if "check" in found else found


def finding_in(report: pytest.TestReport) -> Finding:
    """Return the finding of a failed test."""
    return Finding(properties_of(report).get("finding", Finding.WRONG_ANSWER.value))


def skip_reason(report: pytest.TestReport) -> str:
    """Return why a test was skipped."""
    found = report.longrepr
    return found[2].removeprefix("Skipped: ") if isinstance(found, tuple) else str(found)
