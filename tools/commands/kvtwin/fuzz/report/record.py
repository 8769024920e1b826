"""The record of a night of fuzzing: plain values, from which all three reports are rendered.

`Night.to_json` returns the contents of `report.json`; `schema.json` describes every field.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

SCHEMA_VERSION = "1.0"
"""The major version changes if old readers would be wrong, the minor one if fields are added."""

Verdict: TypeAlias = Literal["passed", "failed", "interrupted"]
Status: TypeAlias = Literal["new", "known", "fixed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """An implementation under test."""

    name: str
    module: str
    version: str
    file: str
    commit: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of the night."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int | None = None
    gpus: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """The settings of the draws: the seed, the example database and `CI`."""

    is_random: bool
    database: str
    ci: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", mask_password(self.database))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate of the unseen events of one kind of coverage; see `estimates`."""

    cases: int
    observations: int
    once: int
    twice: int
    share_new: float
    new_per_case: float
    unseen_at_least: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """The coverage of one kind in a night."""

    kind: str
    met: int
    new: int | None = None
    lost: int | None = None
    total: int | None = None
    unmet: Sequence[str] = ()
    estimate: Estimate | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """The state of the night at one moment."""

    seconds: float
    cases: int
    met: Mapping[str, int]
    failures: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The results for one function or target."""

    name: str
    cases: int
    seconds: float
    met: Mapping[str, int]
    new: Mapping[str, int] | None = None
    findings: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PropertyRow(Row):
    """The results for one property."""

    function: str
    target: str
    kind: str
    slices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A failure, deduplicated by function, field and error class."""

    id: str
    function: str
    target: str
    kind: str
    line: str
    status: Status
    property: str = ""
    field: str = ""
    error: str = ""
    message: str = ""
    table: str = ""
    fails: int = 0
    attempts: int = 0
    seen: int = 1
    first_seen: str = ""
    obstacle: str = ""
    case: str = ""
    script: str = ""
    script_text: str = ""
    command: str = ""
    also: Sequence[str] = ()
    pictures: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostWorker:
    """A worker that died, hung or was lost with its node."""

    worker: str
    seconds: float
    reason: str
    property: str = ""
    action: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerMemory:
    """The memory of a worker."""

    worker: str
    peak_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """A small scope of inputs that is enumerated."""

    name: str
    functions: Sequence[str]
    bounds: str
    cases: int
    seconds: float
    different: int
    is_finished: bool
    total: int
    declared: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Error:
    """An error of the fuzzer itself."""

    where: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PastNight:
    """An earlier night, as stored in the history."""

    started: str
    seconds: float
    cases: int
    workers: int
    verdict: Verdict
    new: int
    known: int
    fixed: int
    met: Mapping[str, int]
    commit: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Night:
    """A night of fuzzing. The fields from `coverage` on are empty until `tally.with_tables`."""

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
        """How the night ended. A night without cases has failed.

        A resumed exhaustive run may have none left to compare.
        """
        is_open = any(finding.status != "fixed" for finding in self.findings)
        is_different = any(scope.different for scope in self.exhaustive)
        is_complete = self.exhaustive and all(scope.is_finished for scope in self.exhaustive)
        if not (self.cases or is_complete) or self.errors or is_open or is_different:
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
    """Return a value with lists for tuples, and floats rounded to six significant digits."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def mask_password(text: str) -> str:
    """Mask the passwords of URLs in a text, since reports are published.

    >>> mask_password("redis://user:secret@host:6379/0")
    'redis://user:***@host:6379/0'
    """
    return re.sub(r"(\w+://[^/@\s:]*:)[^/\s]*@", r"\1***@", text)
