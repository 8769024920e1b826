"""What a run looked at, how it ended, and what its terminal says of that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from conformance.situations import Ledger

if TYPE_CHECKING:
    import pytest

    from conformance.profiles import Profile
    from conformance.targets import Target


class Run:
    """One conformance run.

    Args:
        targets: What is under test.
        profile: How many examples it spends.

    Attributes:
        collected: The tests of each function that were to be run.
        with_kernel: Functions that must launch a kernel in the simulator.
        partial: Functions some of whose tests were left out; their situations are not judged.
        finished: The tests that ended.
        failed: Functions with a test that failed, which is said already.
        outcomes: The reports of each function on each target.
    """

    def __init__(self, targets: list[Target], profile: Profile) -> None:
        self.targets = targets
        self.profile = profile
        self.collected: defaultdict[str, set[str]] = defaultdict(set)
        self.with_kernel: set[str] = set()
        self.partial: set[str] = set()
        self.finished: set[str] = set()
        self.failed: set[str] = set()
        self.outcomes: defaultdict[tuple[str, str], list[pytest.TestReport]] = defaultdict(list)

    def to_record(self) -> dict[str, Any]:
        """Return what a worker collected as plain values, which travel to the controller."""
        return {
            "collected": {name: sorted(nodes) for name, nodes in self.collected.items()},
            "with_kernel": sorted(self.with_kernel),
            "partial": sorted(self.partial),
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what a worker collected."""
        for name, nodes in record["collected"].items():
            self.collected[name].update(nodes)
        self.with_kernel.update(record["with_kernel"])
        self.partial.update(record["partial"])

    def note(self, report: pytest.TestReport, function: str, target: str) -> None:
        """Note how a test of a function on a target ended."""
        self.outcomes[function, target].append(report)
        if report.failed:
            self.failed.add(function)
        if report.when == "call":
            self.finished.add(report.nodeid)

    def judged(self) -> list[str]:
        """Return the functions whose tests all ran, and passed."""
        return [
            name
            for name, nodes in sorted(self.collected.items())
            if nodes <= self.finished and name not in self.partial | self.failed
        ]

    def judge(self, ledger: Ledger) -> bool:
        """Tell whether the run fails for what it did not meet."""
        return bool(list(self.unmet_lines(ledger)))

    def unmet_lines(self, ledger: Ledger) -> Iterable[str]:
        """Yield a line for each situation that no example met, each check that ran nothing."""
        for name in self.judged():
            for target in self.targets:
                ran = any(f"[{target.name}-" in node for node in self.collected[name])
                if ran and not ledger.examples[name, target.name]:
                    yield f"no example: {name} on {target.name}"
                if (
                    ran
                    and target.is_simulated
                    and name in self.with_kernel
                    and not ledger.launches[name]
                ):
                    yield f"no kernel was launched: {name} on {target.name}"
            if self.profile.judges_situations:
                for situation in ledger.unmet(name):
                    yield f"situation never met: {name}: {situation}"

    def table(self, ledger: Ledger) -> Iterable[str]:
        """Yield the lines of the closing table: functions by targets."""
        names = [target.name for target in self.targets]
        functions = list(dict.fromkeys(name for name, _ in self.outcomes))
        width = max(map(len, ["function", *functions]))
        yield "  ".join(
            ["function".ljust(width), *(name.ljust(22) for name in names), "situations", "time"]
        )
        for function in sorted(functions):
            cells = []
            seconds = 0.0
            for name in names:
                reports = self.outcomes.get((function, name), [])
                seconds += sum(report.duration for report in reports)
                examples = ledger.examples[function, name]
                if not reports:
                    cells.append("-".ljust(22))
                elif any(report.failed for report in reports):
                    cells.append("FAILS".ljust(22))
                else:
                    cells.append(f"conforms ({examples:,})".ljust(22))
            expected = ledger.expected.get(function, [])
            met = f"{len(expected) - len(ledger.unmet(function))}/{len(expected)}"
            yield "  ".join([function.ljust(width), *cells, met.rjust(10), f"{seconds:4.0f} s"])
