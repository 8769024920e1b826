"""Failing inputs are made small, also those that end the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.checks import Check
from conformance.profiles import Kind
from conformance.strategies.presets import MINIMAL
from conformance.targets import TARGETS
from tests.tools.fuzz.contexts import KeepingContext
from tools.fuzz import minimize as minimizing
from tools.fuzz.cases import Case, Input, Status, run_case, run_data
from tools.fuzz.failures import Failure, key_of
from tools.fuzz.minimize import TRIES, MinimizeJob, ProcessDiedError, minimize, run_in_child
from tools.fuzz.properties import Property, Subject

NUMBERS = st.lists(st.integers(0, 1000), max_size=20)


class Notes(KeepingContext):
    """A worker's context to which nothing is reported."""

    def report(self, message: object) -> None:
        """Refuse: minimizing reports nothing."""
        raise AssertionError(message)


def toy(body: Callable[[Any, Any], None]) -> Property:
    """Return a property of lists of numbers."""
    check = Check("a toy", Kind.LAW, lambda _: NUMBERS, body, "A toy.", presets=(MINIMAL,))
    return Property("toys:toy", check, TARGETS["host"])


def failing(prop: Property, is_failing: Callable[[Case], bool]) -> Case:
    """Return a case that fails, of those that seeds give."""
    for seed in range(10_000):
        case = run_case(prop, Input(prop.name, seed))
        if is_failing(case):
            return case
    raise AssertionError("no seed gives such a case")


def has_large(_: object, example: list[int]) -> None:
    """Fail where two numbers are above 100."""
    assert sum(number > 100 for number in example) < 2


def test_the_smallest_input_is_found() -> None:
    """Two numbers of 101 are left of a list of many."""
    prop = toy(has_large)
    case = failing(prop, lambda case: case.error is not None and len(case.example) > 6)

    def fails(data: ConjectureData) -> bool:
        return run_data(prop, data).status is Status.FAILED

    choices = minimize(case.choices, fails, time.monotonic() + 60)
    assert [101, 101] == run_case(prop, Input(prop.name, 0, choices)).example


def test_no_time_leaves_an_input_as_it_is() -> None:
    """What was found is not lost."""
    prop = toy(has_large)
    case = failing(prop, lambda case: case.error is not None)
    assert case.choices == minimize(case.choices, lambda _: True, time.monotonic() - 1)
    assert case.choices == minimize(
        case.choices, lambda _: True, time.monotonic() + 60, is_over=lambda: True
    )


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (lambda: None, ""),
        (lambda: 1 / 0, ""),
        (lambda: os._exit(3), "exit 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: bytearray(1 << 60), "out of memory"),
    ],
    ids=["returns", "raises", "exits", "is killed", "has no memory"],
)
def test_how_a_child_ends(call: Callable[[], None], how: str) -> None:
    """An exception is found without a child: there it is no death."""
    assert how == run_in_child(call, 60.0)


def test_a_child_that_hangs() -> None:
    """It is killed when its time is over."""
    started = time.monotonic()
    assert "hang" == run_in_child(lambda: time.sleep(1000), 0.5)
    assert time.monotonic() - started < 60


def job_of(
    monkeypatch: pytest.MonkeyPatch, prop: Property, case: Case, died: str = ""
) -> MinimizeJob:
    """Return the job that minimizes a case of a toy."""
    monkeypatch.setattr(minimizing, "properties_of", lambda _: {prop.name: prop})
    key = key_of(prop.check.function, AssertionError() if case.error is None else case.error)
    return MinimizeJob(Subject(), Input(prop.name, 0, case.choices).to_bytes(), key, 60.0, died)


def minimized(job: MinimizeJob) -> Failure:
    """Run a job; return the failure."""
    found = job.run(Notes())
    assert found is not None
    return found


def test_a_failure_is_minimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """It always fails: the input is small."""
    prop = toy(has_large)
    found = minimized(job_of(monkeypatch, prop, failing(prop, lambda case: case.error is not None)))
    assert (True, TRIES, TRIES) == (found.is_minimal, found.fails, found.tries)
    assert [101, 101] == run_case(prop, Input.from_bytes(found.input)).example
    assert ("a toy", "", "AssertionError", "law") == (*found.key, found.kind)


def test_a_flaky_failure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried several times, and the report says how often it failed."""
    calls = []

    def every_other_time(_: object, example: list[int]) -> None:
        calls.append(example)
        assert len(calls) % 2

    prop = toy(every_other_time)
    case = failing(prop, lambda case: case.error is not None)
    calls.clear()
    found = minimized(job_of(monkeypatch, prop, case))
    assert (False, 2, TRIES) == (found.is_minimal, found.fails, found.tries)


def test_what_does_not_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to minimize."""
    prop = toy(lambda *_: None)
    case = run_case(prop, Input(prop.name, 3))
    assert None is job_of(monkeypatch, prop, case).run(Notes())
    assert None is job_of(monkeypatch, prop, case, died="signal SIGSEGV").run(Notes())


def test_a_crash_is_minimized_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker lives on, and notes whose input it tries."""

    def crash(_: object, example: list[int]) -> None:
        if sum(example) > 500:
            os.kill(os.getpid(), signal.SIGKILL)

    prop = toy(crash)
    passing = toy(lambda *_: None)
    case = failing(passing, lambda case: sum(case.example) > 2000)
    job = job_of(monkeypatch, prop, case, died="signal SIGKILL")
    notes = Notes()
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


def test_a_hang_is_minimized_in_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time; each try takes as long as a hang is waited for."""
    monkeypatch.setattr(minimizing, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(run_in_child, "__defaults__", (0.5,))

    def hang(_: object, example: list[int]) -> None:
        while len(example) > 2:
            time.sleep(0.1)

    prop = toy(hang)
    case = failing(toy(lambda *_: None), lambda case: len(case.example) == 3)
    found = minimized(job_of(monkeypatch, prop, case, died="hang"))
    assert ("hang", "hang", "the call hangs") == (found.kind, found.error, found.line)
    assert [0, 0, 0] == run_case(toy(lambda *_: None), Input.from_bytes(found.input)).example
