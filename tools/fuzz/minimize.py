"""Minimize the inputs of failures.

An input that raises is tried in the worker itself. One that crashes or hangs is tried in a forked
child each time: the input is drawn in the worker, and checked in the child. A stateful test draws
while it runs, so there the child draws, and the worker draws the same once the child has ended.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.hypothesis_provider import FreshProvider
from tools.fuzz.cases import Case, Input, Status, run_case, run_data
from tools.fuzz.child import (
    CASE_SECONDS,
    HANG_SECONDS,
    ProcessDiedError,
    draw_in_child,
    run_in_child,
)
from tools.fuzz.coverage import batch_of
from tools.fuzz.failures import Failure, key_of, with_artefacts
from tools.fuzz.jobs import WorkerContext
from tools.fuzz.properties import Property, Subject, properties_of, uses_gpu
from tools.fuzz.shrink import shrink
from tools.fuzz.slices import failure_of_case

TRIES: Final = 5
"""How often an input is tried to learn whether it always fails."""

DIED: Final = {"crash", "hang"}
"""The kinds of failures that end a worker."""

Key = tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class MinimizeJob:
    """Make a failing input small, find out whether it always fails, and store its case.

    Attributes:
        subject: What is fuzzed.
        input: The input, as `Input.to_bytes` writes it.
        key: The key of the failure.
        seconds: How long to try.
        kind: The kind of the failure.
        stacks: What a worker that died of the input was doing.
        finding_id: The finding that the failure is of.
    """

    subject: Subject
    input: bytes
    key: Key
    seconds: float
    kind: str = ""
    stacks: str = ""
    finding_id: str = ""

    @property
    def name(self) -> str:
        """The property, with what is done to it."""
        return f"minimize {Input.from_bytes(self.input).property_name}"

    @property
    def needs_gpu(self) -> bool:
        """Whether the target is a GPU."""
        return uses_gpu(self.subject, Input.from_bytes(self.input).property_name)

    def run(self, worker: WorkerContext) -> Failure | None:
        """Return the smallest failure found; None if the input did not fail again."""
        return self._run_isolated(worker) if self.kind in DIED else self._run_here(worker)

    def _run_here(self, worker: WorkerContext) -> Failure | None:
        prop, input_ = _property_of(self), Input.from_bytes(self.input)
        cases = [run_case(prop, input_, worker.note_input) for _ in range(TRIES)]
        failing = [case for case in cases if _key(prop, case) == self.key]
        if not failing:
            return None
        case = failing[0]
        is_minimal = len(failing) == TRIES
        if is_minimal:
            # By its own time: on a busy machine an input should not stay larger.
            is_late = _lateness(worker, self.seconds, time.process_time)

            def attempt(data: ConjectureData) -> int | None:
                tried = run_data(prop, data, worker.note_input)
                return _requests(tried) if _key(prop, tried) == self.key else None

            choices = shrink(case.choices, attempt, is_late)
            is_minimal = not is_late()
            again = run_case(prop, Input(prop.name, 0, choices), worker.note_input)
            case = again if _key(prop, again) == self.key else case
        found = failure_of_case(prop, case, is_minimal=is_minimal, fails=len(failing), tries=TRIES)
        return with_artefacts(found, prop.check, prop.target, prop.where, case.example, case.raised)

    def _run_isolated(self, worker: WorkerContext) -> Failure | None:
        prop, input_ = _property_of(self), Input.from_bytes(self.input)
        is_late = _lateness(worker, self.seconds, time.monotonic)
        hangs = self.kind == "hang"
        isolated = _Isolated(prop, HANG_SECONDS if hangs else CASE_SECONDS)

        def run(data: ConjectureData) -> Case:
            worker.note_input(self.input)  # this worker is alive; the child has a time of its own
            return isolated.run(data)

        def is_same(case: Case) -> bool:
            how = _how_it_died(case)
            return bool(how) and (how == "hang") is hangs

        def attempt(data: ConjectureData) -> int | None:
            tried = run(data)
            return _requests(tried) if is_same(tried) else None

        chance = random.Random(input_.seed)  # noqa: S311  # no secret
        first = ConjectureData(random=chance, provider=FreshProvider, prefix=input_.prefix)
        case = run(first)
        if not is_same(case):
            return None
        choices = case.choices
        tries = 2 if hangs else TRIES
        fails = 1 + sum(attempt(_replay(choices)) is not None for _ in range(tries - 1))
        is_minimal = fails == tries
        if is_minimal:
            choices = shrink(choices, attempt, is_late)
            is_minimal = not is_late()
            again = run(_replay(choices))
            case = again if is_same(again) else case
        error = case.raised
        found = failure_of_case(
            prop,
            case,
            kind=self.kind,
            message=f"{error}\n{self.stacks}",
            is_minimal=is_minimal,
            fails=fails,
            tries=tries,
        )
        found = dataclasses.replace(found, error=_how_it_died(case), line=str(error))
        if prop.is_stateful:  # what it drew is known to the child alone
            return found
        return with_artefacts(
            found, prop.check, prop.target, prop.where, case.example, error, is_safe=False
        )


def _property_of(job: MinimizeJob) -> Property:
    return properties_of(job.subject)[Input.from_bytes(job.input).property_name]


def _lateness(
    worker: WorkerContext, seconds: float, clock: Callable[[], float]
) -> Callable[[], bool]:
    """Return a function that says whether a time from now on is over."""
    deadline = clock() + seconds
    return lambda: worker.is_over() or clock() > deadline


def _key(prop: Property, case: Case) -> Key | None:
    return None if case.error is None else key_of(prop.check.function, case.error)


def _requests(case: Case) -> int:
    """Return the number of requests of a case's batch, 0 if it has none."""
    batch = batch_of(case.example)
    return 0 if batch is None else batch.num_reqs


def _how_it_died(case: Case) -> str:
    """Return how a case ended its process; empty if it did not."""
    return case.error.how if isinstance(case.error, ProcessDiedError) else ""


def _replay(choices: Sequence[ChoiceT]) -> ConjectureData:
    return ConjectureData(random=random.Random(0), prefix=tuple(choices))  # noqa: S311  # no secret


class _Isolated:
    """A property whose cases are checked in a forked child.

    Args:
        prop: The property.
        seconds: How long a case may take.
    """

    def __init__(self, prop: Property, seconds: float) -> None:
        self._prop, self._seconds = prop, seconds
        check = dataclasses.replace(prop.check, body=self._check)
        self._drawing = dataclasses.replace(prop, check=check)
        if not prop.is_stateful:
            self._drawing.__dict__["strategy"] = prop.strategy

    def run(self, data: ConjectureData) -> Case:
        """Return the case that was drawn, with a `ProcessDiedError` if the child died."""
        if not self._prop.is_stateful:
            return run_data(self._drawing, data)
        how = draw_in_child(lambda copy: run_data(self._prop, copy), data, self._seconds)
        choices = tuple(data.choices)
        if not how:
            return Case(Status.PASSED, choices)
        return Case(Status.FAILED, choices, error=ProcessDiedError(how))

    def _check(self, _target: object, example: Any) -> None:
        how = run_in_child(lambda: self._prop.run(example), self._seconds)
        if how:
            raise ProcessDiedError(how)
