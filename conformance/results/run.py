"""A conformance run, and the lines of its terminal summary."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

from conformance.coverage.goals import Coverage
from conformance.generation.profiles import Kind
from conformance.results.outcomes import Outcomes, finding_in, properties_of, skip_reason
from conformance.values.differences import Finding

if TYPE_CHECKING:
    from conformance.targets.target import Target


ORDER = [
    kind.value
    for kind in (
        Kind.SAME_ANSWER,
        Kind.SAME_REFUSAL,
        Kind.OTHER_TENSORS,
        Kind.LAW,
        Kind.MEMORY,
        Kind.LARGE,
        Kind.CONDITIONS,
        Kind.THREADS,
        Kind.STATEFUL,
    )
]
"""Kinds of tests, those first whose failures are easiest to understand."""

MOST_NAMES: Final = 3
"""How many of the functions that a function fails with are listed."""

HALF_OF_A_LINE: Final = 200
"""How many characters at each end of a long difference are shown."""


class State(enum.Enum):
    """The state of a function on a target."""

    CONFORMS = "conforms"
    FAILS = "fails"
    FAILS_WITH = "fails with"
    ABSENT = "absent"
    DEVIATES = "deviates"
    NOT_CHECKABLE = "not checkable"
    NOT_RUN = "not run"


class Run(Outcomes):
    """One conformance run: its outcomes, and the lines that describe them."""

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
        """Return the findings in words, with CRASHES or HANGS in place of wrong answers."""
        failed = (properties_of(report) for report, _ in self.failures(function, target))
        ends = min((str(found["crash"]) for found in failed if "crash" in found), default="")
        words = [finding.plural for finding in self.findings(function, target)]
        return [ends, *words[1:]] if ends else words

    def table(self, coverage: Coverage) -> Iterable[str]:
        """Yield the lines of the summary table: functions by targets.

        Functions that all targets lack are left out, unless they are selected by name.
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

        Severe findings come first, then failures with an example, then the kinds by `ORDER`.
        Among tests of one kind, those that use no other failing function come first, then those
        with small examples, then differences of a field before exceptions.
        """

        def rank(failure: tuple[pytest.TestReport, frozenset[str]]) -> tuple[bool | int | str, ...]:
            report, used = failure
            found = properties_of(report)
            kind = ORDER.index(found.get("kind", ORDER[-1]))
            is_error = re.match(r"\w+: ", str(found.get("difference", "Error: "))) is not None
            is_large = "minimal" not in report.nodeid
            gravity = -finding_in(report).weight
            has_no_example = "source" not in found  # such as a setting that some call changed
            return gravity, has_no_example, kind, bool(used), is_large, is_error, report.nodeid

        return [report for report, _ in sorted(self.failures(function, target), key=rank)]

    def notes(self, coverage: Coverage) -> Iterable[str]:
        """Yield lines about absent functions, and about what was not checked."""
        for one in self.targets:
            if not one.validates:
                yield f"not checked on {one.name}: rejection of invalid calls (declared)"
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
                yield f"fails with {_first_names(others)}: {function} on {target}"
            for finding in () if others else self.findings(function, target):
                word = "FAILS" if finding is Finding.WRONG_ANSWER else finding.value
                found = [properties_of(one) for one in failed if finding_in(one) is finding]
                ends = [properties for properties in found[1:] if "crash" in properties]
                # The table says that it crashes, so a line says where, although another is plainer.
                for properties in found[:1] if "crash" in found[0] else [found[0], *ends[:1]]:
                    difference = _in_one_line(str(properties.get("difference", "an error")))
                    yield f"{word}: {function} on {target}: {difference}"
                    if "replay" in properties:
                        yield f"  replay: {properties['replay']}"
            stored = [properties_of(report).get("stored") for report in failed]
            for path in dict.fromkeys(filter(None, stored)):
                yield f"  stored: {path}"


def _first_names(names: Sequence[str]) -> str:
    """Return the first names in a line, and the number of the others.

    >>> _first_names(["a", "b", "c"]), _first_names(["a", "b", "c", "d", "e"])
    ('a, b, c', 'a, b, c and 2 others')
    """
    rest = names[MOST_NAMES:]
    others = f" and {len(rest)} other{'s' * (len(rest) > 1)}" if rest else ""
    return ", ".join(names[:MOST_NAMES]) + others


def _in_one_line(text: str) -> str:
    r"""Return a text in one line, a long one without its middle.

    >>> _in_one_line("returned tensor([[1],\n        [2]])")
    'returned tensor([[1], [2]])'
    >>> len(_in_one_line("x" * 1000))
    405
    """
    line = " ".join(text.split())
    if len(line) <= 2 * HALF_OF_A_LINE:
        return line
    return f"{line[:HALF_OF_A_LINE]} ... {line[-HALF_OF_A_LINE:]}"


RUN = pytest.StashKey[Run]()
"""The run, in pytest's configuration."""
CHECKED: pytest.StashKey[tuple[Any, Any]] = pytest.StashKey()
"""An item's check, a `Check` or a `CaseCheck`, and its target."""
