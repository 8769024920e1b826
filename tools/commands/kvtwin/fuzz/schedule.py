"""Choose the next job of a night: try a finding again, minimize a failure, or run a slice."""

from __future__ import annotations

import functools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvtwin.fuzz.cases.case import Input, readable_input
from kvtwin.fuzz.cases.properties import Property
from kvtwin.fuzz.chooser import Chooser
from kvtwin.fuzz.findings.database import Database
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.minimize import MinimizeJob
from kvtwin.fuzz.findings.records import Findings, open_findings, place_of
from kvtwin.fuzz.findings.replay import ReplayJob, passes_to_be_fixed
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.slices import SliceJob
from kvtwin.fuzz.workers.jobs import Job

SLICE_SECONDS: Final = (0.36, 4.0)
"""The shortest and the longest slice.

Shorter slices run fewer cases and meet more pairs of goals: in three minutes on two cores 85,440
and 112,663 with 0.25, 93,274 and 112,016 with 0.4 (2026-11-27).
"""

FIRST_SECONDS: Final = 0.05
"""The shortest slice of the first round, which one slow case may exceed."""

LATE_SHARE: Final = 0.6
"""After this share of a night, minimizing comes before slices."""

MINIMIZE_SECONDS: Final = 20.0
"""The time limit for minimizing an input; less in a short night."""

SHARED_INPUTS: Final = 16
"""The most inputs worth varying that are sent with a slice."""

MAX_DEATHS: Final = 3
"""The number of workers that a property may end before it gets no more slices."""

PATIENCE_SECONDS: Final = 3.0
"""The shorter hang limit for functions that are known to hang."""


class Schedule:
    """Chooses the jobs of a night.

    Args:
        options: The options of the night.
        seed: The seed from which those of slices are derived.
        properties: The properties, by name.
        chooser: Chooses the property of a slice.
        findings: The findings; those of earlier nights are replayed first.
        database: The example database.

    Attributes:
        urgent: Jobs that come before slices.
        failing: The keys of known failures, which slices need not report.
        covering: The latest inputs that covered something new, by property.
    """

    def __init__(  # the parts of a night
        self,
        options: Options,
        seed: int,
        properties: Mapping[str, Property],
        chooser: Chooser,
        findings: Findings,
        database: Database,
    ) -> None:
        self.options, self.properties, self.chooser = options, properties, chooser
        self.findings, self.database = findings, database
        self.urgent: deque[Job] = deque()
        self.failing = {finding.failure.key for finding in open_findings(findings)}
        self.covering: defaultdict[str, deque[bytes]] = defaultdict(
            lambda: deque(maxlen=SHARED_INPUTS)
        )
        self._replays = deque(self._replay_of(one.failure) for one in findings.by_id.values())
        self._seed = seed
        self._slices = 0
        self._deaths: Counter[str] = Counter()

    def next(self, running: Sequence[Job], seconds: float, num_workers: int) -> Job | None:
        """Return the next job; until late in the night, half of the workers run slices.

        Args:
            running: The jobs that run, or wait for a worker.
            seconds: The seconds since the night began.
            num_workers: The number of workers of the pool.
        """
        if self._replays:
            return self._replays.popleft()
        others = sum(not isinstance(job, SliceJob) for job in running)
        is_late = seconds > LATE_SHARE * self.options.seconds
        if self.urgent and (is_late or others < max(num_workers // 2, 1)):
            primary = self.findings.primary()
            # Explained failures wait: the one that explains them may turn out to be flaky.
            jobs = [job for job in self.urgent if _is_primary(job, primary)]
            if jobs:
                job = min(jobs, key=_place_of)
                self.urgent.remove(job)
                return job
        return self._next_slice(self.options.seconds - seconds, num_workers)

    def give_back(self, name: str, untried: tuple[bytes, ...]) -> None:
        """Take back first inputs that a slice did not run, for another slice."""
        self._first[name] += untried

    def give_back_of_lost(self, job: SliceJob, noted: Input | None) -> None:
        """Take back the first inputs of a lost slice that come after its last case.

        Args:
            job: The slice.
            noted: The input of its last case; None if there was none.
        """
        inputs = [Input.from_bytes(data) for data in job.first]
        tried = 0
        if noted is not None:
            tried = inputs.index(noted) + 1 if noted in inputs else len(inputs)
        self.give_back(job.property_name, job.first[tried:])

    def note_death(self, name: str) -> bool:
        """Count a worker that a property ended; return whether the property gets no more slices."""
        self._deaths[name] += 1
        is_retired = self._deaths[name] >= MAX_DEATHS
        if is_retired:
            self.chooser.retire(name)
        return is_retired

    def minimize(self, failure: Failure) -> None:
        """Schedule the minimization of a failure, unless it is minimal or cannot be minimized."""
        if failure.is_minimal or failure.kind == "memory growth" or not failure.input:
            return
        if failure.property_name not in self.properties:
            return  # its stored call failed again, but its input cannot be drawn
        self.urgent.append(
            MinimizeJob(
                self.options.subject,
                failure.property_name,
                failure.input,
                failure.key,
                min(MINIMIZE_SECONDS, self.options.seconds / 12),
                failure.kind,
                failure.message.partition("\n")[2],
                failure.id,
            )
        )

    def _replay_of(self, failure: Failure) -> ReplayJob:
        return ReplayJob(
            self.options.subject,
            failure.property_name,
            failure.id,
            failure.kind,
            failure.target,
            failure.input,
            failure.case,
            passes_to_be_fixed(failure.fails, failure.tries),
        )

    def _next_slice(self, left: float, num_workers: int) -> SliceJob | None:
        name = self.chooser.choose()
        if name is None:
            return None
        first, self._first[name] = self._first[name], ()
        self._slices += 1
        return SliceJob(
            self.options.subject,
            name,
            self._seed ^ (self._slices << 20),
            min(self._slice_seconds(num_workers), max(left, 0.05)),
            frozenset(self.failing),
            tuple(self.covering[name]),
            first,
            max_cases=1 if self.properties[name].is_fixed else None,
            hang_timeout_seconds=self._patience_with(self.properties[name].check.function),
        )

    @functools.cached_property
    def _first(self) -> dict[str, tuple[bytes, ...]]:
        """The inputs of each property that no slice has run yet, but that come before others.

        They are inputs of earlier nights, then the property's own. They are read before anything
        is written: later, reading waits for it, 9 ms for each property.
        """
        return {name: (*self._earlier(name), *self._own(name)) for name in self.properties}

    def _earlier(self, name: str) -> Iterator[bytes]:
        found = self.database.failing(name)[-SHARED_INPUTS:]
        found += self.database.covering(name)[-SHARED_INPUTS:]
        return (data for data in found if readable_input(data) is not None)

    def _own(self, name: str) -> Iterator[bytes]:
        chance = random.Random(f"{self._seed} {name}")  # noqa: S311  # no secret
        for choices in self.properties[name].first_choices(chance):
            yield Input(name, chance.getrandbits(64), choices).to_bytes()

    def _patience_with(self, function: str) -> float | None:
        """Return the hang limit for cases of a function; None for the default."""
        known = (found.failure for found in open_findings(self.findings))
        is_known = any(
            failure.key == (function, "", "hang") and failure.fails == failure.tries > 1
            for failure in known
        )
        return PATIENCE_SECONDS if is_known else None

    def _slice_seconds(self, num_workers: int) -> float:
        """Return the length of a slice; the first round takes an eighth of the night or more."""
        shortest, longest = SLICE_SECONDS
        share = self.options.seconds * num_workers / len(self.properties)
        if self.chooser.is_first_round:
            return min(max(share / 8, FIRST_SECONDS), 1.0)
        return min(max(share / 5, shortest), longest)


def _is_primary(job: Job, primary: Mapping[str, object]) -> bool:
    """Return whether no other failure explains the one that a job would minimize."""
    return not isinstance(job, MinimizeJob) or job.finding_id in primary


def _place_of(job: Job) -> int:
    """Return the rank of an urgent job: failures that explain others come first."""
    return place_of(job.kind if isinstance(job, MinimizeJob) else "memory growth")
