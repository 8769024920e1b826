"""A night: run jobs until the time is over, and collect their results.

`schedule` chooses the next job.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from kvtwin.fuzz.cases.case import readable_input
from kvtwin.fuzz.cases.coverage import PLURALS, goals_of
from kvtwin.fuzz.cases.properties import Property, PropertyJob, properties_of
from kvtwin.fuzz.chooser import Chooser
from kvtwin.fuzz.display import Display, State
from kvtwin.fuzz.findings.database import Database
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.forked_draws import ProcessDiedError
from kvtwin.fuzz.findings.growth import GrowthJob, can_measure
from kvtwin.fuzz.findings.minimize import MinimizeJob
from kvtwin.fuzz.findings.records import OUT_OF_MEMORY, Findings, open_findings
from kvtwin.fuzz.findings.replay import ReplayJob, ReplayResult
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.report.record import Error, LostWorker, Point
from kvtwin.fuzz.schedule import Schedule
from kvtwin.fuzz.slices import SliceJob, SliceResult
from kvtwin.fuzz.workers.jobs import Event, Finished, Job, Lost, Message, Pool
from kvtwin.fuzz.workers.ray_pool import NodeLost

DRAIN_SECONDS: Final = 4.0
"""How long to wait for running jobs after the night is over."""

GROWN_BYTES: Final = 24 << 20
"""A property whose slices grew memory by this much is measured for leaks."""

MAX_ERRORS: Final = 50
"""The number of errors of the fuzzer itself after which a night ends."""


class Fuzzing:
    """The main loop of a night, and its state.

    Args:
        options: The options of the night.
        pool: The workers.
        database: The example database.
        display: Shows the progress.

    Attributes:
        num_workers: The most workers that there were at once.
        cluster_cpus: The most CPUs that the cluster had; 0 if there is none.

    Raises:
        ValueError: The options have unknown names; the findings cannot be read.
    """

    def __init__(self, options: Options, pool: Pool, database: Database, display: Display) -> None:
        self.options, self.pool, self.database, self.display = options, pool, database, display
        self.seed = secrets.randbits(64) if options.seed is None else options.seed
        self.properties = properties_of(options.subject)
        self.findings = Findings(options.out / "findings")
        self.chooser = Chooser(
            {name: goals_of(prop.check) for name, prop in self.properties.items()},
            self.seed,
            {name: prop.min_cases for name, prop in self.properties.items() if prop.min_cases},
            {name for name, prop in self.properties.items() if prop.is_fixed},
        )
        self.started = datetime.now(UTC)
        self.curve: list[Point] = []
        self.lost: list[LostWorker] = []
        self.errors: list[Error] = []
        self.peak_bytes = 0
        self.num_workers = self.cluster_cpus = 0
        self.interrupted_by: str | None = None
        self._begin = time.monotonic()
        self._outstanding: list[Job] = []
        self._grown: Counter[str] = Counter()
        self._schedule = Schedule(
            options, self.seed, self.properties, self.chooser, self.findings, database
        )

    @property
    def seconds(self) -> float:
        """The seconds since the night began."""
        return time.monotonic() - self._begin

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.options.seconds - self.seconds

    def run(self) -> None:
        """Run until the time is over, or `interrupt` ends it."""
        while self.left > 0 and self.interrupted_by is None:
            self._submit()
            self._handle(self.pool.events(min(0.2, max(self.left, 0))))
            self._show()
            if len(self.errors) > MAX_ERRORS:
                break
        self._drain()
        self.findings.write()
        self._note_point()

    def interrupt(self, name: str) -> None:
        """End the night because of a signal of this name."""
        self.interrupted_by = name

    def _submit(self) -> None:
        """Submit jobs until each worker has one, and one job waits."""
        while len(self._outstanding) <= self.pool.size and self.left > 0:
            job = self._schedule.next(self._outstanding, self.seconds, self.pool.size)
            if job is None:
                return
            self.pool.submit(job)
            self._outstanding.append(job)

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self._handle_message(event)
                continue
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
            self._note_lost(content.worker, "its node was lost", event.job, "runs on another node")

    def _handle_finished(self, event: Finished) -> None:
        result, job = event.result, event.job
        self.peak_bytes = max(self.peak_bytes, event.peak_bytes)
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
        self.chooser.learn(result)
        self._schedule.give_back(name, result.untried)
        self.findings.count(result.repeated)
        for data in result.covering:
            self._schedule.covering[name].append(data)
            self.database.save_covering(name, data)
        self._grown[name] += max(result.grown_bytes, 0)
        if self._grown[name] > GROWN_BYTES and result.grown_bytes > 0:
            record = self.chooser.records[name]
            worker_seconds = self.options.seconds * self.pool.size
            # Failing cases leave reports in memory, which would be measured too.
            if not record.failed and can_measure(
                record.seconds / max(record.cases, 1), worker_seconds
            ):
                self._grown[name] = -(1 << 62)  # once
                self._schedule.urgent.append(GrowthJob(self.options.subject, name, self.seed))

    def _note_replay(self, result: ReplayResult) -> None:
        if result.fails:
            self.findings.note_failing(result.id, result.fails, result.tries)
            self._schedule.failing.add(self.findings.by_id[result.id].failure.key)
            if result.fails == result.tries:
                self._schedule.minimize(self.findings.by_id[result.id].failure)
        elif result.is_fixed:
            failure = self.findings.by_id[result.id].failure
            self.findings.note_fixed(result.id)
            self._schedule.failing.discard(failure.key)  # it may come back in another form
            self.database.remove_failing(failure.property_name, failure.input)
            self.display.note(f"fixed: {failure.line}")
        elif result.obstacle:
            self.findings.by_id[result.id].obstacle = result.obstacle

    def _note_minimized(self, job: MinimizeJob, result: Failure | None) -> None:
        known = job.finding_id
        if known not in self.findings.by_id:
            return
        failure = self.findings.by_id[known].failure
        if result is None:  # it did not fail again
            result = dataclasses.replace(failure, fails=1, tries=1 + job.tries)
        self.database.remove_failing(failure.property_name, failure.input)
        self.database.save_failing(result.property_name, result.input)
        self.findings.replace(known, result)
        self._schedule.failing.add(result.key)

    def _handle_lost(self, event: Lost) -> None:
        job, noted = event.job, readable_input(event.input)
        if isinstance(job, SliceJob):
            self._schedule.give_back_of_lost(job, noted)
        if event.reason == "stopped":
            return
        if isinstance(job, SliceJob):
            self.chooser.give_up(job.property_name)
        if event.reason == "node":
            reason = event.detail or "its node was lost"
            self._note_lost(event.worker, reason, job, "does not run again")
            return
        if event.reason == "error":
            self.errors.append(Error(where=job.name, message=event.detail))
            self.display.note(f"the fuzzer itself failed in {job.name}: {_last_line(event.detail)}")
            return
        if isinstance(job, ReplayJob):
            self.findings.note_failing(job.id, 1, 1)
        action = "restarted"
        if self._schedule.note_death(_property_of(job)):
            action += "; the property gets no more slices"
        if noted is not None and not isinstance(job, ReplayJob):
            failure = _death_of(self.properties[noted.property_name], event)
            action += f"; the input is stored as {failure.id}"
            self._add(failure)
        self._note_lost(event.worker, event.reason, job, action)

    def _note_lost(self, worker: str, reason: str, job: Job, action: str) -> None:
        self.lost.append(
            LostWorker(
                worker=worker,
                seconds=self.seconds,
                reason=reason,
                property=_property_of(job),
                action=action,
            )
        )

    def _add(self, failure: Failure) -> None:
        """Store a failure, and schedule its minimization if it is new."""
        found = self.findings.add(failure)
        self._schedule.failing.add(failure.key)
        if found is None:
            return
        self.display.note(f"FAILS: {failure.function} on {failure.target}: {failure.line}")
        if failure.input:
            self.database.save_failing(failure.property_name, failure.input)
        self._schedule.minimize(failure)

    def _drain(self) -> None:
        """Stop running jobs, and handle their last events."""
        self.pool.stop()
        until = time.monotonic() + DRAIN_SECONDS
        while self._outstanding and time.monotonic() < until:
            self._handle(self.pool.events(0.1))
        self.pool.close()
        self._handle(self.pool.events(0))

    def _show(self) -> None:
        # Those of a cluster come and go.
        self.num_workers = max(self.num_workers, self.pool.size)
        self.cluster_cpus = max(self.cluster_cpus, self.pool.cluster_cpus)
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
        return {PLURALS[kind]: number for kind, number in self.chooser.kinds.items()}

    def _note_point(self) -> None:
        number = len(open_findings(self.findings))
        point = Point(seconds=self.seconds, cases=self.num_cases, met=self.met(), failures=number)
        self.curve.append(point)


def _property_of(job: Job) -> str:
    """Return the name of a job's property; each job of a night has one."""
    return job.property_name if isinstance(job, PropertyJob) else job.name


def _death_of(prop: Property, event: Lost) -> Failure:
    """Return the failure of a worker that died, not minimized."""
    how = event.reason.removeprefix("signal ")
    how = OUT_OF_MEMORY if how == "memory" else how
    line = str(ProcessDiedError(how))
    return Failure(
        prop.check.function,
        prop.target.name,
        prop.name,
        "hang" if how == "hang" else "crash",
        "",
        how,
        line,
        message=f"{line}\n{event.detail}",
        input=event.input,
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
