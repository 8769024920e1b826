"""Minimize the inputs of failures.

An input that raises is tried in the worker itself. An input that crashes or hangs is drawn in the
worker, and checked in a forked child. A stateful test draws while it runs, so the child draws, and
the worker repeats the draws after the child has ended.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.execution.forked_calls import run_in_child
from conformance.generation.hypothesis_provider import FreshProvider
from kvtwin.fuzz.cases.case import Case, Input, Status, run_case, run_data
from kvtwin.fuzz.cases.coverage import batch_of
from kvtwin.fuzz.cases.properties import Property, PropertyJob, properties_of
from kvtwin.fuzz.findings.failures import Failure, Key, failure_of_case, key_of, with_artefacts
from kvtwin.fuzz.findings.forked_draws import (
    CASE_SECONDS,
    HANG_SECONDS,
    ProcessDiedError,
    draw_in_child,
)
from kvtwin.fuzz.findings.shrink import shrink
from kvtwin.fuzz.workers.jobs import WorkerContext

TRIES: Final = 5
"""How often an input is tried, to detect flaky failures."""

HANG_TRIES: Final = 2
"""How often an input that hung is tried."""

PROCESS_FAILURES: Final = {"crash", "hang"}
"""The kinds of failures that end the worker."""


@dataclasses.dataclass(frozen=True)
class MinimizeJob(PropertyJob):
    """Minimize a failing input, find out whether it always fails, and store its case.

    Attributes:
        input: The input, as `Input.to_bytes` writes it.
        key: The key of the failure.
        seconds: The time limit.
        kind: The kind of the failure.
        stacks: The stacks of the worker that the input crashed.
        finding_id: The finding of the failure.
    """

    input: bytes
    key: Key
    seconds: float
    kind: str = ""
    stacks: str = ""
    finding_id: str = ""
    task: ClassVar[str] = "minimize"

    @property
    def tries(self) -> int:
        """How often the input is tried before it is minimized."""
        return HANG_TRIES if self.kind == "hang" else TRIES

    def run(self, worker: WorkerContext) -> Failure | None:
        """Return the smallest failure found; None if the input did not fail again."""
        input_ = Input.from_bytes(self.input)
        prop = properties_of(self.subject)[self.property_name]
        attempts = (_ForkedAttempts if self.kind in PROCESS_FAILURES else _Attempts)(
            self, prop, worker
        )
        cases = [attempts.repeat(input_) for _ in range(self.tries)]
        failing = [case for case in cases if attempts.is_same(case)]
        if not failing:
            return None
        case = failing[0]
        is_minimal = len(failing) == len(cases)
        if is_minimal:
            deadline = attempts.clock() + self.seconds

            def is_late() -> bool:
                return worker.is_over() or attempts.clock() > deadline

            choices = shrink(case.choices, attempts.num_requests, is_late)
            is_minimal = not is_late()
            again = attempts.run(_replay(choices))
            if attempts.is_same(again):
                case = again
            else:  # it is flaky: the tries before were too close together to show it
                cases.append(again)
                is_minimal = False
        return attempts.failure_of(
            case, is_minimal=is_minimal, fails=len(failing), tries=len(cases)
        )


class _Attempts:
    """Cases that are tried in this process.

    Args:
        job: The job.
        prop: The property.
        worker: The worker.
    """

    clock = staticmethod(time.process_time)
    """Processor time, so that inputs are minimized as far on a busy machine."""

    def __init__(self, job: MinimizeJob, prop: Property, worker: WorkerContext) -> None:
        self.job, self.prop, self.worker = job, prop, worker

    def repeat(self, input_: Input) -> Case:
        """Try an input again."""
        return run_case(self.prop, input_, self.worker.note_input)

    def run(self, data: ConjectureData) -> Case:
        """Try the input that data draws."""
        # If this worker dies, that is a failure too; a stateful test notes no input itself.
        given = tuple(_given(data.prefix or ()))
        self.worker.note_input(Input(self.prop.name, 0, given).to_bytes())
        return run_data(self.prop, data, self.worker.note_input)

    def is_same(self, case: Case) -> bool:
        """Return whether a case is the same failure as the one to minimize."""
        return case.error is not None and (
            key_of(self.prop.check.function, case.error) == self.job.key
        )

    def num_requests(self, data: ConjectureData) -> int | None:
        """Return the number of requests that data draws, 0 without a batch; None if it passes."""
        case = self.run(data)
        if not self.is_same(case):
            return None
        batch = batch_of(case.example)
        return 0 if batch is None else batch.num_reqs

    def failure_of(self, case: Case, **counts: int) -> Failure:
        """Return the failure of a case, with its stored case and its script."""
        prop = self.prop
        found = failure_of_case(prop, case, **counts)
        return with_artefacts(found, prop, case.example, case.raised)


class _ForkedAttempts(_Attempts):
    """Cases that are each tried in a forked child, since they may crash or hang."""

    clock = staticmethod(time.monotonic)

    def __init__(self, job: MinimizeJob, prop: Property, worker: WorkerContext) -> None:
        super().__init__(job, prop, worker)
        self.hangs = job.kind == "hang"
        self.seconds = HANG_SECONDS if self.hangs else CASE_SECONDS
        check = dataclasses.replace(prop.check, body=self._check_in_child)
        self._drawing = dataclasses.replace(prop, check=check)
        if not prop.is_stateful:
            self._drawing.__dict__["strategy"] = prop.strategy

    def repeat(self, input_: Input) -> Case:
        """Try an input again."""
        chance = random.Random(input_.seed)  # noqa: S311  # no secret
        return self.run(ConjectureData(random=chance, provider=FreshProvider, prefix=input_.prefix))

    def run(self, data: ConjectureData) -> Case:
        """Try the input that data draws; the error is a `ProcessDiedError` if the child died."""
        self.worker.note_input(self.job.input)  # reset the hang timer; the child has its own
        if not self.prop.is_stateful:
            return run_data(self._drawing, data)
        how = draw_in_child(
            lambda copy: run_data(self.prop, copy), data, self.seconds, self.worker.memory_bytes
        )
        choices = tuple(data.choices)
        if not how:
            return Case(Status.PASSED, choices)
        return Case(Status.FAILED, choices, error=ProcessDiedError(how))

    def is_same(self, case: Case) -> bool:
        """Return whether a case crashes or hangs like the one to minimize."""
        return isinstance(case.error, ProcessDiedError) and (
            (case.error.how == "hang") is self.hangs
        )

    def failure_of(self, case: Case, **counts: int) -> Failure:
        """Return the failure of a case, with its stored case."""
        error, prop = case.raised, self.prop
        message = f"{error}\n{self.job.stacks}"
        found = failure_of_case(prop, case, kind=self.job.kind, message=message, **counts)
        how = error.how if isinstance(error, ProcessDiedError) else ""
        found = dataclasses.replace(found, error=how, line=str(error))
        if prop.is_stateful:  # only the child has the example
            return found
        return with_artefacts(found, prop, case.example, error, is_safe=False)

    def _check_in_child(self, _target: object, example: Any) -> None:
        limit = self.worker.memory_bytes
        how = run_in_child(lambda: self.prop.run(example), self.seconds, max_bytes=limit)
        if how:
            raise ProcessDiedError(how)


def _replay(choices: Sequence[ChoiceT]) -> ConjectureData:
    return ConjectureData(random=random.Random(0), prefix=tuple(choices))  # noqa: S311  # no secret


def _given(prefix: Iterable[object]) -> Iterator[ChoiceT]:
    """Yield the choices of a prefix up to the first that Hypothesis' shrinker leaves open.

    The later choices are noted after they were drawn; in a stateful test they are not.
    """
    for choice in prefix:
        if not isinstance(choice, int | str | float | bytes):
            return
        yield choice
