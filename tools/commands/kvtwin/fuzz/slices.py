"""A slice: run cases of one property for some seconds, in a worker."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hypothesis.internal.conjecture.choice import ChoiceT

import reference
from conformance.execution.process_memory import rss_bytes
from kvtwin.fuzz.cases import branches, coverage
from kvtwin.fuzz.cases.case import Case, Input, Status, run_case
from kvtwin.fuzz.cases.properties import Property, PropertyJob, Subject, properties_of
from kvtwin.fuzz.findings.failures import Key, failure_of_case, key_of
from kvtwin.fuzz.workers.jobs import WorkerContext

MAX_INPUTS: Final = 256
"""The most inputs of a property that a worker keeps because they covered something new."""

FRESH_CASES: Final = 200
"""How many cases of a property a worker draws afresh before it varies inputs.

Inputs that are drawn afresh meet more pairs of goals at first: in three minutes on two cores
110,645 if a fifth of all inputs were varied, and 109,308 if half were (2026-11-27).
"""

VARIED_SHARE: Final = 0.5
"""The share of later cases that vary an input that covered something new."""

LATEST: Final = 4
"""Half of these vary one of this many inputs, the last ones that took a new branch."""

MAX_REPORTED: Final = 8
"""The most failures that a slice reports; more would be repetitions."""


@dataclasses.dataclass(frozen=True)
class SliceResult:
    """The result of a slice.

    Attributes:
        property_name: The property's name.
        cases: Cases that ran, invalid ones included.
        invalid: Cases whose input could not be drawn.
        failed: Cases that failed, known failures included.
        seconds: How long it took.
        events: The events that it covered, with the number of cases.
        covering: Inputs that covered something new to this worker.
        grown_bytes: How much the resident memory of the worker grew.
        untried: Inputs of the job's `first` that were not run.
        repeated: How many cases failed in a way that was reported before, by the failure's key.
    """

    property_name: str
    cases: int
    invalid: int
    failed: int
    seconds: float
    events: Counter[coverage.Event]
    covering: tuple[bytes, ...] = ()
    grown_bytes: int = 0
    untried: tuple[bytes, ...] = ()
    repeated: Counter[Key] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True)
class SliceJob(PropertyJob):
    """Run cases of one property for some seconds.

    Attributes:
        seed: The seed of the slice's draws.
        seconds: The length of the slice.
        known: The keys of failures that need not be reported again.
        inputs: Inputs of other workers that covered something new. They are only varied: running
            them unchanged took a third of the time.
        first: Inputs that are run first, unchanged, each once.
        max_cases: The most cases; None for no limit.
        hang_timeout_seconds: A case that takes longer counts as hung; None for the worker's limit.
    """

    seed: int
    seconds: float
    known: frozenset[Key] = frozenset()
    inputs: tuple[bytes, ...] = ()
    first: tuple[bytes, ...] = ()
    max_cases: int | None = None
    hang_timeout_seconds: float | None = None

    def run(self, worker: WorkerContext) -> SliceResult:
        """Run the slice in a worker; report each new failure at once."""
        prop = properties_of(self.subject)[self.property_name]
        memory = _memory_of(self.subject)
        memory.add(self.inputs)
        return _Slice(self, prop, memory, worker).run()


class _Memory:
    """The state that a worker keeps between slices: coverage, and inputs that are worth varying.

    Args:
        properties: The properties of the subject, whose implementations' branches are observed.
    """

    def __init__(self, properties: Iterable[Property]) -> None:
        # Hashes, since a long night has many inputs and sets of goals.
        self.signatures: defaultdict[str, set[int]] = defaultdict(set)
        self.known: set[int] = set()
        self.inputs: dict[str, list[Input]] = {}
        self.latest: dict[str, deque[Input]] = {}
        self.cases: Counter[str] = Counter()
        self.sources: list[coverage.Source] = [coverage.GoalsAndSizes()]
        modules = {prop.target.implementation.module for prop in properties}
        files = [getattr(module, "__file__", None) for module in (*modules, reference)]
        folders = {Path(file).parent for file in files if file}
        self.sources.append(branches.branch_source(folders, is_sampled=True))

    def add(self, inputs: tuple[bytes, ...]) -> None:
        """Add inputs of other workers that are new to this worker."""
        for data in inputs:
            if hash(data) not in self.known:
                self.known.add(hash(data))
                self.keep(Input.from_bytes(data))

    def keep(self, found: Input) -> None:
        """Keep an input, and drop the oldest if there are too many."""
        stored = self.inputs.setdefault(found.property_name, [])
        stored.append(found)
        del stored[:-MAX_INPUTS]


_MEMORIES: dict[Subject, _Memory] = {}


def _memory_of(subject: Subject) -> _Memory:
    """Return this process' memory of a subject."""
    if subject not in _MEMORIES:
        _MEMORIES[subject] = _Memory(properties_of(subject).values())
    return _MEMORIES[subject]


class _Slice:
    """A running slice."""

    def __init__(
        self, job: SliceJob, prop: Property, memory: _Memory, worker: WorkerContext
    ) -> None:
        self.job, self.prop, self.memory, self.worker = job, prop, memory, worker
        self.chance = random.Random(f"{job.seed} {job.property_name}")  # noqa: S311  # no secret
        self.known = set(job.known)
        self.statuses: Counter[Status] = Counter()
        self.covering: list[bytes] = []
        self.repeated: Counter[Key] = Counter()
        self.untried = deque(job.first)

    def run(self) -> SliceResult:
        """Run the first inputs as they are, then others until the time is over."""
        started = time.perf_counter()
        before = rss_bytes(os.getpid())
        for source in self.memory.sources:
            source.begin(self.prop.name)
        while not self._is_over(started):
            self._run_one(self._choose_input())
        events: Counter[coverage.Event] = Counter()
        for source in self.memory.sources:
            events += source.end()
        return SliceResult(
            self.job.property_name,
            self.statuses.total(),
            self.statuses[Status.INVALID],
            self.statuses[Status.FAILED],
            time.perf_counter() - started,
            events,
            tuple(self.covering),
            rss_bytes(os.getpid()) - before,
            tuple(self.untried),
            self.repeated,
        )

    def _is_over(self, started: float) -> bool:
        cases = self.statuses.total()
        if self.job.max_cases is not None and cases >= self.job.max_cases:
            return True
        is_late = time.perf_counter() - started > self.job.seconds
        return self.worker.is_over() or (is_late and cases > 0)

    def _run_one(self, input_: Input) -> None:
        case = run_case(self.prop, input_, self.worker.note_input)
        self.statuses[case.status] += 1
        self.memory.cases[self.prop.name] += 1
        if case.status is not Status.INVALID:
            function = self.prop.check.function
            is_new = [
                source.see(function, case.goals, case.example) for source in self.memory.sources
            ]
            self._keep_if_new(case, takes_new_branch=any(is_new))
        if case.status is Status.FAILED:
            self._report(case)

    def _choose_input(self) -> Input:
        if self.untried:
            return Input.from_bytes(self.untried.popleft())
        seed = self.chance.getrandbits(64)
        stored = self.memory.inputs.get(self.job.property_name, ())
        is_early = self.memory.cases[self.prop.name] < FRESH_CASES
        if not stored or is_early or self.chance.random() > VARIED_SHARE:
            return Input(self.job.property_name, seed)
        latest = self.memory.latest.get(self.job.property_name)
        if latest and self.chance.random() < 0.5:
            choices = self.chance.choice(latest).prefix
        else:  # prefer recent ones: few others cover the same
            at = max(self.chance.randrange(len(stored)), self.chance.randrange(len(stored)))
            choices = stored[at].prefix
        return Input(self.job.property_name, seed, vary(choices, self.chance))

    def _keep_if_new(self, case: Case, *, takes_new_branch: bool) -> None:
        """Store the input of a case if it covered something new in this worker.

        New is a set of goals, or a branch that no case of the property took before.
        """
        name = self.job.property_name
        signature = hash(frozenset(case.goals))
        known = self.memory.signatures[name]
        if (signature in known and not takes_new_branch) or len(case.choices) > 4096:
            return
        known.add(signature)
        found = Input(name, 0, case.choices)
        self.memory.keep(found)
        if takes_new_branch:
            self.memory.latest.setdefault(name, deque(maxlen=LATEST)).append(found)
        data = found.to_bytes()
        self.memory.known.add(hash(data))
        if len(self.covering) < MAX_INPUTS:
            self.covering.append(data)

    def _report(self, case: Case) -> None:
        key = key_of(self.prop.check.function, case.raised)
        if key in self.known or len(self.known) - len(self.job.known) >= MAX_REPORTED:
            self.repeated[key] += 1
            return
        self.known.add(key)
        self.worker.report(failure_of_case(self.prop, case))


def vary(choices: tuple[ChoiceT, ...], chance: random.Random) -> tuple[ChoiceT, ...]:
    """Mutate choices: keep only the first ones, or change one of them.

    Choices after the first ones are drawn again. If a strategy does not allow the changed choice,
    Hypothesis uses the simplest one in its place.

    >>> vary((), random.Random(0))
    ()
    """
    at = chance.randrange(len(choices) + 1)
    if at == len(choices) or chance.random() < 0.5:
        return choices[:at]
    old = choices[at]
    new: ChoiceT
    if isinstance(old, bool):
        new = not old
    elif isinstance(old, int):
        near = (old - 1, old + 1, 0, chance.randrange(8), chance.randint(0, 2 * abs(old) + 1))
        new = chance.choice(near)
    else:
        return choices[:at]
    return (*choices[:at], new, *choices[at + 1 :])
