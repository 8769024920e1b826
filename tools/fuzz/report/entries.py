"""The entries of a record: machines, coverage, findings, workers, scopes, earlier nights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["passed", "failed", "interrupted"]
Status: TypeAlias = Literal["new", "known", "fixed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """An implementation under test.

    Attributes:
        name: Its short name.
        module: The module.
        version: The module's version.
        file: The file of the module.
        commit: The commit of the repository that the file lies in, empty where there is none.
    """

    name: str
    module: str
    version: str
    file: str
    commit: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that took part.

    Attributes:
        name: The host name.
        cpu: The model of the CPU.
        cores: Its cores, as far as the night was allowed to use them.
        memory_bytes: Its memory, None where the system does not tell.
        gpus: The names of its GPUs.
        lost: Why the machine was lost during the night, empty for one that was not.
    """

    name: str
    cpu: str
    cores: int
    memory_bytes: int | None = None
    gpus: Sequence[str] = ()
    lost: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """How Hypothesis was set up, as verified at the start.

    Attributes:
        is_random: Whether each night draws other cases.
        database: The directory or URL of the example database; a password in it is masked.
        ci: The value of the environment variable `CI`, None where it is not set.
    """

    is_random: bool
    database: str
    ci: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", mask_password(self.database))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What is still unseen of one kind of coverage; `estimates` says what it means.

    Attributes:
        cases: The cases in which events of this kind were observed.
        observations: How often events were met: the sum over all events.
        once: The events that exactly one case met.
        twice: The events that exactly two cases met.
        share_new: Good-Turing's estimate of the probability that the next observation is new.
        new_per_case: The estimate of how many new events the next case meets.
        unseen_at_least: Chao's lower bound of the number of events that were not met.
    """

    cases: int
    observations: int
    once: int
    twice: int
    share_new: float
    new_per_case: float
    unseen_at_least: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the night met of one kind of coverage.

    Attributes:
        kind: Its name in the plural, such as `goals`.
        met: How many different events the night met.
        new: How many of them the last night had not met, None without a last night.
        lost: How many events the last night met and this one did not, None without a last night.
        total: How many events there are, None where nobody knows.
        unmet: The names of those that were not met, where they are known.
        estimate: What is still unseen, None without cases.
    """

    kind: str
    met: int
    new: int | None = None
    lost: int | None = None
    total: int | None = None
    unmet: Sequence[str] = ()
    estimate: Estimate | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """The state of the night at one moment.

    Attributes:
        seconds: Since the start.
        cases: Cases until then.
        met: Different events until then, by kind of coverage.
        failures: Different failures found until then.
    """

    seconds: float
    cases: int
    met: Mapping[str, int]
    failures: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What the night did for a function or on a target.

    Attributes:
        name: The function or the target.
        cases: How many cases were run.
        seconds: How long they took, summed over the workers.
        met: Different events, by kind of coverage.
        new: Those that the last night had not met, by kind; None without a last night.
        findings: The ids of its open findings.
    """

    name: str
    cases: int
    seconds: float
    met: Mapping[str, int]
    new: Mapping[str, int] | None = None
    findings: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PropertyRow(Row):
    """What the night did for one property.

    Attributes:
        function: The function that the property is about.
        target: The target on which it ran.
        kind: The kind of the property, such as `answer` or `refusal`.
        slices: How many slices of time it got.
    """

    function: str
    target: str
    kind: str
    slices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A failure, deduplicated by function, field and error class.

    Attributes:
        id: A short name, unique in the night.
        function: The function that fails.
        target: The target on which it fails.
        property: The property that failed first.
        kind: `mismatch`, `law`, `refusal`, `crash`, `hang`, `memory growth` or another word.
        field: The path of the first field that differs, without indices; empty for other kinds.
        error: The name of the exception class, empty without one.
        line: What is wrong, in one line.
        message: The whole message, empty where `line` is all.
        table: The failing call, rendered as text; empty without one.
        status: `new` tonight, `known` from an earlier night, or `fixed`.
        fails: How often it failed when it was tried again with the same input.
        attempts: How often it was tried again; it is flaky if it failed less often.
        seen: How many inputs failed this way tonight.
        first_seen: When it was first found, in ISO 8601.
        case: The path of the stored case, empty without one.
        script: The path of a short script that shows it, empty without one.
        script_text: The script.
        command: The command line that replays the stored case, empty without one.
        also: Other functions that fail with it.
        pictures: Pictures of the batch, as `conformance.reports.picture.pictures_of` gives them.
    """

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
    case: str = ""
    script: str = ""
    script_text: str = ""
    command: str = ""
    also: Sequence[str] = ()
    pictures: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostWorker:
    """A worker that died or hung.

    Attributes:
        worker: Its name.
        seconds: When, since the start.
        reason: Why, such as `SIGSEGV` or `no answer for 60 s`.
        property: What it worked on, empty if nothing.
        action: What was done, such as `restarted; the input is finding 3`.
    """

    worker: str
    seconds: float
    reason: str
    property: str = ""
    action: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerMemory:
    """The memory of a worker.

    Attributes:
        worker: Its name.
        peak_bytes: The largest resident size of its processes.
        recycled: How often its process was replaced because it had grown past the limit.
    """

    worker: str
    peak_bytes: int
    recycled: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scope:
    """A small scope of inputs that is enumerated.

    Attributes:
        name: Its name.
        functions: The functions that are compared.
        bounds: What is enumerated, to stand after `Every`, such as `batch of at most 3 requests`.
        cases: The inputs that were compared.
        seconds: How long they took, summed over the workers.
        different: How many of the inputs failed.
        is_finished: Whether every input was compared.
        total: How many inputs there are, None where that is not known before the end.
    """

    name: str
    functions: Sequence[str]
    bounds: str
    cases: int
    seconds: float
    different: int
    is_finished: bool
    total: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bisection:
    """The commit that introduced a failure.

    Attributes:
        case: The path of the stored case.
        repository: The repository that was searched.
        good: The commit that was given as good.
        bad: The commit that was given as bad.
        first_bad: The first commit that fails, empty where none was found.
        subject: The first line of its message, or why no commit was found.
        tested: How many commits were tried.
    """

    case: str
    repository: str
    good: str
    bad: str
    first_bad: str
    subject: str
    tested: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Error:
    """Something that went wrong in the night itself.

    Attributes:
        where: A property, a module, or the part of the night.
        message: What went wrong.
    """

    where: str
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PastNight:
    """An earlier night, as the history has it.

    Attributes:
        started: When it began, in ISO 8601.
        seconds: How long it took.
        cases: How many cases it ran.
        workers: How many workers it had.
        verdict: How it ended.
        new: Failures that were new.
        known: Failures that were known and still open.
        fixed: Failures that were fixed.
        met: Different events, by kind of coverage.
        commit: The commits of the implementations.
    """

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


def mask_password(text: str) -> str:
    """Return a text without the passwords of its URLs, since reports are published.

    >>> mask_password("redis://user:secret@host:6379/0")
    'redis://user:***@host:6379/0'
    """
    return re.sub(r"(\w+://[^/@\s:]*:)[^/\s]*@", r"\1***@", text)
