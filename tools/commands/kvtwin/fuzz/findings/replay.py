"""Try a finding of an earlier night again."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from conformance.cases.check import replay
from conformance.encoding import Json
from conformance.execution.forked_calls import run_in_child
from conformance.targets.target import RAISED
from kvtwin.fuzz.cases.case import Input, run_case
from kvtwin.fuzz.cases.properties import Property, PropertyJob, Subject, properties_of
from kvtwin.fuzz.findings.forked_draws import CASE_SECONDS, HANG_SECONDS
from kvtwin.fuzz.findings.growth import GrowthJob, MemoryGrowthError
from kvtwin.fuzz.findings.minimize import TRIES
from kvtwin.fuzz.workers.jobs import WorkerContext

SECONDS: Final = 20.0
"""The time after which no further try begins."""

MAX_PASSES: Final = 200
"""The number of passes after which even the rarest failure counts as fixed."""


def passes_to_be_fixed(fails: int, tries: int) -> int:
    """Return after how many passes a failure counts as fixed, by how often it failed before.

    A failure that is not fixed passes that often with probability 1%, or more at `MAX_PASSES`.

    >>> [passes_to_be_fixed(fails, 8) for fails in (8, 7, 4, 1)], passes_to_be_fixed(1, 1000)
    ([1, 3, 7, 35], 200)
    """
    if fails >= tries:
        return 1
    return min(math.ceil(math.log(0.01) / math.log(1 - fails / tries)), MAX_PASSES)


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """The result of replaying a finding.

    Attributes:
        id: The finding's id.
        fails: How often it failed.
        tries: How often it was tried.
        is_fixed: Whether it passed so often that it counts as fixed.
        obstacle: Why it was not tried; empty if it was.
    """

    id: str
    fails: int
    tries: int
    is_fixed: bool = False
    obstacle: str = ""


@dataclasses.dataclass(frozen=True)
class ReplayJob(PropertyJob):
    """Try a finding again in a forked child, since it may crash.

    Attributes:
        id: The finding's id.
        kind: The kind of the failure.
        target: The name of the target.
        input: The input, as `Input.to_bytes` writes it.
        case: Its stored case; None if there is none, and the input is drawn again.
        passes: How often it must pass to count as fixed.
    """

    id: str
    kind: str
    target: str
    input: bytes
    case: Json = None
    passes: int = 1
    task: ClassVar[str] = "replay a failure of"

    def run(self, worker: WorkerContext) -> ReplayResult:
        """Return how often it failed."""
        try:
            attempt = self._attempt()
        except ValueError as error:
            return ReplayResult(self.id, 0, 0, obstacle=str(error))
        if self.kind == "memory growth":
            seed = Input.from_bytes(self.input).seed
            found = GrowthJob(self.subject, self.property_name, seed).run(worker)
            return ReplayResult(self.id, int(found is not None), 1, is_fixed=found is None)
        seconds = HANG_SECONDS if self.kind == "hang" else CASE_SECONDS
        fails = tries = 0
        started = time.monotonic()
        while not tries or time.monotonic() - started < SECONDS:
            worker.note_input(self.input)  # resets the hang timer for each try
            fails += _fails(attempt, seconds, worker.memory_bytes)
            tries += 1
            if tries >= TRIES and (fails or tries >= self.passes):
                break
        return ReplayResult(self.id, fails, tries, is_fixed=not fails and tries >= self.passes)

    def _attempt(self) -> Callable[[], object]:
        """Return a function that raises if it still fails.

        Raises:
            ValueError: Its target or its property is not among those of the night.
        """
        properties = properties_of(self.subject)
        if self.case is None:
            prop = _property_named(self.property_name, properties)
            return lambda: _raise_error_of(prop, Input.from_bytes(self.input))
        targets = {prop.target.name: prop.target for prop in properties.values()}
        if self.target not in targets:
            raise ValueError(f"this run has no target {self.target}")
        return lambda: replay(self.case, targets[self.target])


def attempt_of_input(case: Json, subject: Subject) -> Callable[[], None]:
    """Return a function that draws a stored input again, and raises if it still fails.

    Args:
        case: The case, of kind `input`.
        subject: The subject, which must have its property.

    Raises:
        ValueError: An input of a property that the subject does not have.
    """
    expected = Input.from_bytes(case["input"].encode())
    prop = _property_named(expected.property_name, properties_of(subject))

    def attempt() -> None:
        if case.get("failure") == "memory growth":
            found = GrowthJob(subject, prop.name, expected.seed).measure()
            if found is not None:
                raise MemoryGrowthError(found.line)
        else:
            _raise_error_of(prop, expected)

    return attempt


def _property_named(name: str, properties: Mapping[str, Property]) -> Property:
    if name not in properties:
        raise ValueError(f"this run has no property {name}")
    return properties[name]


def _raise_error_of(prop: Property, input_: Input) -> None:
    """Check an input; raise the exception with which it fails, if it does."""
    error = run_case(prop, input_).error
    if error is not None:
        raise error


def _fails(attempt: Callable[[], object], seconds: float, max_bytes: int | None) -> bool:
    """Run an attempt in a forked child; return whether it raises, crashes or hangs."""

    def call() -> None:
        try:
            attempt()
        except RAISED:
            os._exit(1)

    return bool(run_in_child(call, seconds, max_bytes=max_bytes))
