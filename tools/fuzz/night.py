"""A night: replay what was found before, run slices until the time is over, minimize, report."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tools.fuzz import summary
from tools.fuzz.cases import Input
from tools.fuzz.chooser import Chooser
from tools.fuzz.database import Database
from tools.fuzz.display import Display, State
from tools.fuzz.failures import Failure
from tools.fuzz.findings import Finding, Findings, open_findings
from tools.fuzz.growth import GrowthJob
from tools.fuzz.interrupts import catching_signals
from tools.fuzz.jobs import Event, Finished, Job, Lost, Message, Pool
from tools.fuzz.minimize import TRIES, MinimizeJob, ProcessDiedError
from tools.fuzz.options import Options
from tools.fuzz.properties import Property, Subject, properties_of
from tools.fuzz.ray_pool import NodeLost
from tools.fuzz.replay import ReplayJob, ReplayResult, passes_to_be_fixed
from tools.fuzz.report import Error, LostWorker, Point
from tools.fuzz.slices import SliceJob, SliceResult

SLICE_SECONDS: Final = (0.25, 4.0)
"""The shortest and the longest slice."""

MINIMIZE_SECONDS: Final = 20.0
"""What a failing input may take to be made small; less in a short night."""

LATE_SHARE: Final = 0.6
"""After this share of a night, making failing inputs small comes first."""

DRAIN_SECONDS: Final = 4.0
"""What running jobs may take to end after the night is over."""

SHARED_INPUTS: Final = 16
"""Inputs of a property, found by others, that go with each of its slices."""

MOST_DEATHS: Final = 3
"""After a property ended this many workers it gets no more slices: each would end another."""

PATIENCE_SECONDS: Final = 3.0
"""A case of a function that is known to hang hangs if it takes longer than this."""

GROWN_BYTES: Final = 24 << 20
"""A property whose slices left this much memory behind is measured."""

MOST_ERRORS: Final = 50
"""After so many errors of the fuzzer itself a night ends."""


class Fuzzing:
    """A night that runs.

    Args:
        options: What it does.
        pool: The workers.
        database: Keeps the inputs that are worth varying.
        display: Shows it.

    Raises:
        ValueError: The options name nothing that there is; the findings cannot be read.
    """

    def __init__(self, options: Options, pool: Pool, database: Database, display: Display) -> None:
        self.options, self.pool, self.database, self.display = options, pool, database, display
        self.seed = secrets.randbits(64) if options.seed is None else options.seed
        self.properties = properties_of(options.subject)
        self.findings = Findings(options.out / "findings")
        self.chooser = Chooser(self.properties, self.seed)
        self.started = datetime.now(UTC)
        self.curve: list[Point] = []
        self.lost: list[LostWorker] = []
        self.errors: list[Error] = []
        self.peaks: dict[str, int] = {}
        self.num_workers = pool.size
        self.interrupted_by: str | None = None
        self._begin = time.monotonic()
        self._replays: deque[Job] = deque()
        self._urgent: deque[Job] = deque()
        self._outstanding: list[Job] = []
        self._deaths: Counter[str] = Counter()
        self._grown: Counter[str] = Counter()
        self._covering: defaultdict[str, deque[bytes]] = defaultdict(
            lambda: deque(maxlen=SHARED_INPUTS)
        )
        self._fetched: set[str] = set()
        self._slices = 0
        self._failing = {finding.failure.key for finding in self.findings.by_id.values()}

    @property
    def seconds(self) -> float:
        """The seconds since the night began."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.options.seconds - self.seconds

    def run(self) -> None:
        """Run until the time is over, or a signal ends it."""
        for known, finding in self.findings.by_id.items():
            self._replays.append(_replay_of(self.options.subject, known, finding))
        with catching_signals(self._interrupt):
            while self.left > 0 and self.interrupted_by is None:
                self._submit()
                self._handle(self.pool.events(min(0.2, max(self.left, 0))))
                self._show()
                if len(self.errors) > MOST_ERRORS:
                    break
            self._drain()
        self.findings.write()
        self._note_point()

    def _interrupt(self, name: str) -> None:
        self.interrupted_by = name

    def _submit(self) -> None:
        """Keep each worker busy, and one job waiting."""
        while len(self._outstanding) <= self.pool.size and self.left > 0:
            job = self._next_job()
            if job is None:
                return
            self.pool.submit(job)
            self._outstanding.append(job)

    def _next_job(self) -> Job | None:
        """Return what to do next: until late, half of the workers look for more failures."""
        if self._replays:
            return self._replays.popleft()
        others = sum(not isinstance(job, SliceJob) for job in self._outstanding)
        is_late = self.seconds > LATE_SHARE * self.options.seconds
        while self._urgent and (is_late or others < max(self.pool.size // 2, 1)):
            job = self._urgent.popleft()
            if not self._is_explained(job):
                return job
        return self._next_slice()

    def _is_explained(self, job: Job) -> bool:
        """Return whether a job would make small what the report mentions under another failure."""
        return isinstance(job, MinimizeJob) and job.finding_id not in self.findings.primary()

    def _next_slice(self) -> SliceJob | None:
        for _ in range(len(self.properties)):
            name = self.chooser.choose()
            if self._deaths[name] < MOST_DEATHS:
                break
            self.chooser.give_up(name)
        else:
            return None
        first: tuple[bytes, ...] = ()
        if name not in self._fetched:
            self._fetched.add(name)
            covering = self.database.covering(name)[-SHARED_INPUTS:]
            first = (*self.database.failing(name)[-SHARED_INPUTS:], *covering)
        self._slices += 1
        return SliceJob(
            self.options.subject,
            name,
            self.seed ^ (self._slices << 20),
            min(self._slice_seconds(), max(self.left, 0.05)),
            frozenset(self._failing),
            tuple(self._covering[name]),
            first,
            patience_seconds=self._patience_with(self.properties[name].check.function),
        )

    def _patience_with(self, function: str) -> float | None:
        """Return how long a case of a function may take, None for the usual time."""
        known = (found.failure for found in open_findings(self.findings))
        is_known = any(
            failure.key == (function, "", "hang") and failure.fails == failure.tries > 1
            for failure in known
        )
        return PATIENCE_SECONDS if is_known else None

    def _slice_seconds(self) -> float:
        """Return the length of a slice: all properties have one within a third of the night."""
        shortest, longest = SLICE_SECONDS
        share = self.options.seconds * self.pool.size / len(self.properties)
        if self.chooser.is_first_round:
            return min(max(share / 3, shortest / 2), 1.0)
        return min(max(share / 5, shortest), longest)

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self._handle_message(event)
                continue
            with contextlib.suppress(ValueError):  # a lost node's job may end twice
                self._outstanding.remove(event.job)
            if isinstance(event, Lost):
                self._handle_lost(event)
            else:
                self._handle_finished(event)

    def _handle_message(self, event: Message) -> None:
        content = event.content
        if isinstance(content, Failure):
            self._add(content)
        elif isinstance(content, NodeLost):
            self.lost.append(
                LostWorker(
                    worker=content.worker,
                    seconds=self.seconds,
                    reason="its node was lost",
                    property=event.job.name,
                    action="runs again on another node",
                )
            )

    def _handle_finished(self, event: Finished) -> None:
        result, job = event.result, event.job
        self.peaks["each"] = max(self.peaks.get("each", 0), event.peak_bytes)
        if isinstance(result, SliceResult):
            self._learn(result)
        elif isinstance(result, ReplayResult):
            self._note_replay(result)
        elif isinstance(job, MinimizeJob):
            self._note_minimized(job, result)
        elif isinstance(result, Failure):
            self._add(result)

    def _learn(self, result: SliceResult) -> None:
        name = result.property_name
        self.chooser.learn(
            name,
            cases=result.cases,
            seconds=result.seconds,
            events=result.events,
            invalid=result.invalid,
            failed=result.failed,
        )
        for data in result.covering:
            self._covering[name].append(data)
            self.database.save_covering(name, data)
        self._grown[name] += max(result.grown_bytes, 0)
        if self._grown[name] > GROWN_BYTES and result.grown_bytes > 0:
            self._grown[name] = -(1 << 62)  # once
            self._urgent.append(GrowthJob(self.options.subject, name, self.seed))

    def _note_replay(self, result: ReplayResult) -> None:
        finding = self.findings.by_id[result.id]
        if result.fails:
            self.findings.note_failing(result.id, result.fails, result.tries)
        elif result.is_fixed:
            failure = finding.failure
            self.findings.note_fixed(result.id)
            self._failing.discard(failure.key)  # it may come back in another form
            self.database.remove_failing(failure.property_name, failure.input)
            self.display.note(f"fixed: {finding.failure.line}")

    def _note_minimized(self, job: MinimizeJob, result: Failure | None) -> None:
        known = job.finding_id
        if known not in self.findings.by_id:
            return
        failure = self.findings.by_id[known].failure
        if result is None:  # it did not fail again
            result = dataclasses.replace(failure, fails=1, tries=1 + TRIES)
        self.database.remove_failing(failure.property_name, failure.input)
        self.database.save_failing(result.property_name, result.input)
        self.findings.replace(known, result)
        self._failing.add(result.key)

    def _handle_lost(self, event: Lost) -> None:
        job = event.job
        if event.reason in {"stopped", "node"}:
            return
        name = getattr(job, "property_name", "")
        noted = _input_of(event.input)
        if noted is not None:
            name = noted.property_name
        if isinstance(job, SliceJob):
            self.chooser.give_up(job.property_name)
        if event.reason == "error":
            self.errors.append(Error(where=job.name, message=event.detail))
            self.display.note(f"the fuzzer itself failed in {job.name}: {_last_line(event.detail)}")
            return
        if isinstance(job, ReplayJob):
            self.findings.note_failing(job.id, 1, 1)
        self._deaths[name] += 1
        action = "restarted"
        if noted is not None and isinstance(job, SliceJob):
            failure = _death_of(self.properties[name], event)
            action += f"; the input is kept as {failure.id}"
            self._add(failure, died=event.reason, stacks=event.detail)
        self.lost.append(
            LostWorker(
                worker=event.worker,
                seconds=self.seconds,
                reason=event.reason,
                property=name,
                action=action,
            )
        )

    def _add(self, failure: Failure, died: str = "", stacks: str = "") -> None:
        """Keep a failure; have it minimized if it is new."""
        found = self.findings.add(failure)
        self._failing.add(failure.key)
        if found is None:
            return
        self.display.note(f"FAILS: {failure.function} on {failure.target}: {failure.line}")
        if failure.input:
            self.database.save_failing(failure.property_name, failure.input)
        if failure.is_minimal or failure.kind == "memory growth":
            return
        seconds = min(MINIMIZE_SECONDS, self.options.seconds / 12)
        key = None if died else failure.key
        self._urgent.append(
            MinimizeJob(self.options.subject, failure.input, key, seconds, died, stacks, failure.id)
        )

    def _drain(self) -> None:
        """Let running jobs end, and take what they found."""
        self.pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while self._outstanding and time.monotonic() < until:
            self._handle(self.pool.events(0.1))
        self.pool.close()
        self._handle(self.pool.events(0))

    def _show(self) -> None:
        step = max(self.options.seconds / 200, 1.0)
        if not self.curve or self.seconds - self.curve[-1].seconds > step:
            self._note_point()
        self.display.show(
            State(
                self.seconds,
                self.num_cases,
                self.met(),
                len(open_findings(self.findings)),
                sum(finding.status == "new" for finding in self.findings.by_id.values()),
                self.pool.size,
            )
        )

    @property
    def num_cases(self) -> int:
        """The cases so far."""
        return sum(record.cases for record in self.chooser.records.values())

    def met(self) -> dict[str, int]:
        """Return how many different events were met, by kind."""
        return dict(Counter(summary.PLURALS[event[0]] for event in self.chooser.events))

    def _note_point(self) -> None:
        number = len(open_findings(self.findings))
        point = Point(seconds=self.seconds, cases=self.num_cases, met=self.met(), failures=number)
        self.curve.append(point)


def _replay_of(subject: Subject, known: str, finding: Finding) -> ReplayJob:
    failure = finding.failure
    passes = passes_to_be_fixed(failure.fails, failure.tries)
    return ReplayJob(
        subject, known, failure.property_name, failure.kind, failure.input, failure.case, passes
    )


def _input_of(data: bytes) -> Input | None:
    """Return the input that a lost worker had noted; None if it had noted none, or all of it."""
    try:
        return Input.from_bytes(data)
    except (ValueError, TypeError):
        return None


def _death_of(prop: Property, event: Lost) -> Failure:
    """Return the failure of a worker that died, before it was minimized."""
    how = event.reason.removeprefix("signal ")
    how = "out of memory" if how == "memory" else how
    return Failure(
        prop.check.function,
        prop.target.name,
        prop.name,
        "hang" if how == "hang" else "crash",
        "",
        how,
        str(ProcessDiedError(how)),
        message=event.detail,
        input=event.input,
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
