"""Failing inputs are minimized, also those that end the process."""

from __future__ import annotations

import dataclasses
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture.choice import ChoiceTemplate
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.execution import forked_calls
from conformance.execution.process_memory import rss_bytes
from conformance.targets.target import TARGETS
from kvtwin.fuzz.cases.case import Case, Input, Status, run_case
from kvtwin.fuzz.cases.properties import Property, Subject, properties_of
from kvtwin.fuzz.findings import minimize as minimizing
from kvtwin.fuzz.findings import shrink
from kvtwin.fuzz.findings.failures import Failure, key_of
from kvtwin.fuzz.findings.forked_draws import ProcessDiedError
from kvtwin.fuzz.findings.minimize import TRIES, MinimizeJob
from kvtwin.fuzz.findings.records import OUT_OF_MEMORY
from tests.tools.fuzz.contexts import KeepingContext, SilentContext
from tests.tools.fuzz.toys import toy


def failing(prop: Property, is_failing: Callable[[Case], bool]) -> Case:
    """Return the first failing case among those drawn from seeds."""
    for seed in range(10_000):
        case = run_case(prop, Input(prop.name, seed))
        if is_failing(case):
            return case
    raise AssertionError("no seed gives such a case")


def has_large(_: object, example: list[int]) -> None:
    """Fail if two numbers are above 100."""
    assert sum(number > 100 for number in example) < 2


def job_of(
    monkeypatch: pytest.MonkeyPatch, prop: Property, case: Case, kind: str = "law"
) -> MinimizeJob:
    """Return the job that minimizes a case of a toy."""
    monkeypatch.setattr(minimizing, "properties_of", lambda _: {prop.name: prop})
    key = key_of(prop.check.function, AssertionError() if case.error is None else case.error)
    input_ = Input(prop.name, 0, case.choices).to_bytes()
    return MinimizeJob(Subject(), prop.name, input_, key, 600.0, kind)


def minimized(job: MinimizeJob) -> Failure:
    """Run a job; return the failure."""
    found = job.run(SilentContext())
    assert found is not None
    return found


def test_a_failure_is_minimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input of a failure that always occurs is shrunk."""
    prop = toy(has_large)
    found = minimized(job_of(monkeypatch, prop, failing(prop, lambda case: case.error is not None)))
    assert (True, TRIES, TRIES) == (found.is_minimal, found.fails, found.tries)
    assert [101, 101] == run_case(prop, Input.from_bytes(found.input)).example
    assert ("a toy", "", "AssertionError", "law") == (*found.key, found.kind)


def test_choices_that_are_left_open_are_not_noted() -> None:
    """An input with choices that the shrinker leaves open is noted before and after the draw."""
    prop = toy(lambda *_: None, st.tuples(st.integers(0, 9), st.integers(0, 9)))
    worker = KeepingContext()
    job = MinimizeJob(Subject(), prop.name, b"", ("a toy", "", ""), 1.0)
    prefix = (7, ChoiceTemplate("simplest", count=None))
    data = ConjectureData(random=None, prefix=prefix)
    case = minimizing._Attempts(job, prop, worker).run(data)
    assert (7, 0) == case.example
    before, after = map(Input.from_bytes, worker.inputs)
    assert ((7,), (7, 0)) == (before.prefix, after.prefix)


def test_a_flaky_failure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flaky failure is not shrunk; it has the number of times that it failed."""
    calls = []

    def every_other_time(_: object, example: list[int]) -> None:
        calls.append(example)
        assert len(calls) % 2

    prop = toy(every_other_time)
    case = failing(prop, lambda case: case.error is not None)
    calls.clear()
    found = minimized(job_of(monkeypatch, prop, case))
    assert (False, 2, TRIES) == (found.is_minimal, found.fails, found.tries)


def test_a_failure_that_ends_while_it_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that all tries before the shrinking showed, and the one after it did not."""
    calls = []

    def at_first(_: object, example: list[int]) -> None:
        calls.append(example)
        assert len(calls) > TRIES + 1

    prop = toy(at_first)
    case = failing(prop, lambda case: case.error is not None)
    calls.clear()
    found = minimized(job_of(monkeypatch, prop, case))
    assert (False, TRIES, TRIES + 1) == (found.is_minimal, found.fails, found.tries)


def test_what_does_not_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that does not occur again is not minimized."""
    prop = toy()
    case = run_case(prop, Input(prop.name, 3))
    assert None is job_of(monkeypatch, prop, case).run(SilentContext())
    assert None is job_of(monkeypatch, prop, case, "crash").run(SilentContext())


def test_a_crash_is_minimized_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is minimized in children; the worker stays alive, and notes the input."""

    def crash(_: object, example: list[int]) -> None:
        if sum(example) > 500:
            os.kill(os.getpid(), signal.SIGKILL)

    prop = toy(crash)
    passing = toy()
    case = failing(passing, lambda case: sum(case.example) > 2000)
    job = job_of(monkeypatch, prop, case, "crash")
    notes = SilentContext()
    found = job.run(notes)
    assert found is not None
    assert ("crash", "SIGKILL", True, TRIES) == (
        found.kind,
        found.error,
        found.is_minimal,
        found.fails,
    )
    assert [501] == run_case(passing, Input.from_bytes(found.input)).example
    assert {job.input} == set(notes.inputs)
    assert str(ProcessDiedError("SIGKILL")) == found.line


def test_an_input_that_takes_memory_is_minimized_in_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child with more memory than a worker may have is a failure, not one that passes."""

    def take(_: object, example: list[int]) -> None:
        if len(example) > 1:
            taken = bytearray(256 << 20)
            taken[:: mmap.PAGESIZE] = bytes([1]) * len(taken[:: mmap.PAGESIZE])
            time.sleep(60)

    worker = SilentContext()
    worker.memory_bytes = rss_bytes(os.getpid()) + (64 << 20)
    case = failing(toy(), lambda case: len(case.example) == 3)
    found = job_of(monkeypatch, toy(take), case, "crash").run(worker)
    assert found is not None
    assert (OUT_OF_MEMORY, TRIES, TRIES) == (found.error, found.fails, found.tries)
    assert [0, 0] == run_case(toy(), Input.from_bytes(found.input)).example


def test_a_hang_is_minimized_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang is minimized within its time, although each try takes as long as the limit."""
    monkeypatch.setattr(minimizing, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(forked_calls, "STACK_SECONDS", 0.0)

    def hang(_: object, example: list[int]) -> None:
        while len(example) > 2:
            time.sleep(0.1)

    prop = toy(hang)
    case = failing(toy(), lambda case: len(case.example) == 3)
    found = minimized(job_of(monkeypatch, prop, case, "hang"))
    assert ("hang", "hang", "the call hangs") == (found.kind, found.error, found.line)
    assert [0, 0, 0] == run_case(toy(), Input.from_bytes(found.input)).example


class StatefulToy(Property):
    """A property that draws while it runs, and is killed at the second number above 100."""

    @property
    def is_stateful(self) -> bool:
        """True."""
        return True

    @property
    def strategy(self) -> st.SearchStrategy[Any]:
        """A strategy that draws while the test runs."""
        return st.data()

    def run(self, example: Any) -> None:  # noqa: ANN401  # Hypothesis' own
        """Draw numbers until they are 0."""
        drawn: list[int] = []
        while example.draw(st.booleans()):
            drawn.append(example.draw(st.integers(0, 1000)))
            if sum(number > 100 for number in drawn) == 2:
                os.kill(os.getpid(), signal.SIGKILL)


def test_a_stateful_crash_is_minimized_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stateful test draws in the child; the worker repeats its draws and stays alive."""
    monkeypatch.setattr(shrink, "DRAWS", 20)  # each in a child
    prop = StatefulToy("toys:toy", toy(has_large).check, TARGETS["host"])
    input_ = Input(prop.name, 0, (True, 700, True, 3, True, 0, True, 900, True, 800))
    case = Case(Status.FAILED, input_.prefix)
    found = minimized(job_of(monkeypatch, prop, case, "crash"))
    assert ("crash", "SIGKILL", True) == (found.kind, found.error, found.is_minimal)
    assert (True, 101, True, 101) == Input.from_bytes(found.input).prefix
    assert (None, None) == (found.case, found.script)


def test_an_input_without_time_stays_to_be_minimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure that was not shrunk in time is not minimal, so the next night continues."""
    prop = toy(has_large)
    case = failing(prop, lambda case: case.error is not None)
    job = dataclasses.replace(job_of(monkeypatch, prop, case), seconds=0.0)
    found = minimized(job)
    assert (False, TRIES, TRIES) == (found.is_minimal, found.fails, found.tries)


def test_a_plain_assert_is_reported_with_the_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """An assertion without a message is reported with the check's description."""
    original = next(
        prop
        for prop in properties_of(Subject(target="host", functions="UBatchSlice")).values()
        if not prop.is_stateful
    )

    def fail(_target: object, _example: object) -> None:
        raise AssertionError

    prop = dataclasses.replace(original, check=dataclasses.replace(original.check, body=fail))
    found = minimized(job_of(monkeypatch, prop, run_case(prop, Input(prop.name, 0))))
    statement = prop.check.description.partition("\n")[0]
    assert statement
    assert f"AssertionError: {statement}" == found.line
    assert isinstance(found.case, dict)
    assert statement == found.case["reason"]
