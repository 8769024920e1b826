"""The record of a night of fuzzing: plain values, from which all three reports are made.

`Night.to_json` gives what `report.json` contains; `schema.json` defines its form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tools.fuzz.report.entries import (
    Bisection,
    Coverage,
    Error,
    Finding,
    Implementation,
    LostWorker,
    Machine,
    PastNight,
    Point,
    Profile,
    PropertyRow,
    Row,
    Scope,
    Verdict,
    WorkerMemory,
    mask_password,
)

SCHEMA_VERSION = "1.0"
"""The first number changes where an old reader would be wrong, the second where there is more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Night:
    """A night of fuzzing. What `tally.with_tables` fills in is empty until then.

    Attributes:
        started: When it began, in ISO 8601, in UTC.
        seconds_budgeted: The time that it was given.
        seconds: The time that it took.
        command: The arguments of the command line; passwords in URLs are masked.
        seed: What the draws started from.
        workers: How many workers ran at a time, on all machines.
        machines: The machines that took part.
        versions: Versions by name, as `conformance.reports.versions.versions` gives them.
        targets: The names of the targets.
        implementations: What is under test.
        profile: How Hypothesis was set up.
        cases: How many cases were run, those of exhausted scopes included.
        discarded: How many draws gave no valid case.
        selected: The functions that the night was limited to, None for all.
        interrupted_by: The signal that ended it, such as `SIGTERM`; None without one.
        curve: Its state at some moments, in order.
        findings: Its failures, with those that are fixed.
        workers_lost: Workers that died or hung.
        memory: The memory of each worker.
        exhaustive: Scopes that were enumerated.
        bisections: Commits that introduced failures.
        errors: What went wrong in the night itself.
        coverage: What was met, by kind of coverage.
        properties: What was done for each property.
        by_function: The same by function.
        by_target: The same by target.
        history: Earlier nights of the same targets and implementations, in order.
        history_notes: Files of the history that could not be read, a line each.
    """

    started: str
    seconds_budgeted: float
    seconds: float
    command: Sequence[str]
    seed: int
    workers: int
    machines: Sequence[Machine]
    versions: Mapping[str, str]
    targets: Sequence[str]
    implementations: Sequence[Implementation]
    profile: Profile
    cases: int
    discarded: int = 0
    selected: Sequence[str] | None = None
    interrupted_by: str | None = None
    curve: Sequence[Point] = ()
    findings: Sequence[Finding] = ()
    workers_lost: Sequence[LostWorker] = ()
    memory: Sequence[WorkerMemory] = ()
    exhaustive: Sequence[Scope] = ()
    bisections: Sequence[Bisection] = ()
    errors: Sequence[Error] = ()
    coverage: Sequence[Coverage] = ()
    properties: Sequence[PropertyRow] = ()
    by_function: Sequence[Row] = ()
    by_target: Sequence[Row] = ()
    history: Sequence[PastNight] = ()
    history_notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        masked = tuple(mask_password(argument) for argument in self.command)
        object.__setattr__(self, "command", masked)

    @property
    def verdict(self) -> Verdict:
        """How the night ended. A night without cases has failed, whatever else it says."""
        is_open = any(finding.status != "fixed" for finding in self.findings)
        is_different = any(scope.different for scope in self.exhaustive)
        if not self.cases or self.errors or is_open or is_different:
            return "failed"
        return "passed" if self.interrupted_by is None else "interrupted"

    @property
    def cases_per_second(self) -> float:
        """The cases per second of all workers together."""
        return self.cases / self.seconds if self.seconds else 0.0

    @property
    def cases_per_second_per_core(self) -> float:
        """The same for each core that was used."""
        cores = sum(machine.cores for machine in self.machines)
        return self.cases_per_second / max(1, min(self.workers, cores))

    def to_json(self) -> dict[str, Any]:
        """Return the record as values of JSON."""
        found = {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            **dataclasses.asdict(self),
            "cases_per_second": self.cases_per_second,
            "cases_per_second_per_core": self.cases_per_second_per_core,
        }
        return {name: _plain(value) for name, value in found.items()}


def _plain(value: object) -> object:
    """Return a value with lists for tuples, and numbers rounded to what a reader can use."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
