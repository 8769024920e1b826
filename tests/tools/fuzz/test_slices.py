"""Slices: what they report, and which inputs they vary."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from kvtwin.fuzz import slices
from kvtwin.fuzz.cases import branches, coverage
from kvtwin.fuzz.cases.case import Input, run_case
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.slices import FRESH_CASES, SliceJob, SliceResult, vary
from tests.tools.fuzz.contexts import KeepingContext, new_memories
from tests.tools.fuzz.toys import NUMBERS, toy


class Worker(KeepingContext):
    """A worker context that accepts only failures as messages."""

    def report(self, message: object) -> None:
        """Record a failure."""
        assert isinstance(message, Failure)
        super().report(message)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[SliceResult, Worker]]:
    """Return a function that runs a slice of a toy in a new worker."""

    def run_slice(
        *toys: Any,  # noqa: ANN401  # as `toy` takes them
        **options: Any,  # noqa: ANN401  # of any field
    ) -> tuple[SliceResult, Worker]:
        prop = toy(*toys)
        monkeypatch.setattr(slices, "properties_of", lambda _: {prop.name: prop})
        worker = Worker()
        fields = {"max_cases": 50, **options}
        with new_memories(monkeypatch):
            return SliceJob(Subject(), prop.name, 5, 60.0, **fields).run(worker), worker

    return run_slice


def test_a_failure_is_reported_once(run: Callable[..., tuple[SliceResult, Worker]]) -> None:
    """All cases that fail are counted; a known failure is not reported."""

    def fail(_: object, example: list[int]) -> None:
        assert not example

    result, worker = run(fail)
    assert 50 == result.cases
    assert 10 < result.failed < 50
    [failure] = worker.messages
    assert ("a toy", "", "AssertionError") == failure.key
    assert run_case(toy(fail), Input.from_bytes(failure.input)).error is not None
    again, worker = run(fail, known=frozenset({failure.key}))
    assert (result.failed, []) == (again.failed, worker.messages)


def test_a_strategy_that_raises_is_reported(
    run: Callable[..., tuple[SliceResult, Worker]],
) -> None:
    """A strategy that raises is a failure with its error, and the slice continues."""

    @st.composite
    def broken(draw: Any) -> int:  # noqa: ANN401  # Hypothesis' own
        if draw(st.booleans()):
            raise ZeroDivisionError("planted")
        return 3

    result, worker = run(lambda *_: None, broken())
    assert (50, True) == (result.cases, 0 < result.failed < 50)
    [failure] = worker.messages
    assert ("ZeroDivisionError", True) == (failure.error, "planted" in failure.line)


def test_inputs_with_new_coverage_are_stored(
    run: Callable[..., tuple[SliceResult, Worker]],
) -> None:
    """A slice returns an input for each new set of goals."""
    prop = toy()

    def goals_of(example: list[int]) -> list[str]:
        return [f"{min(len(example), 3)} numbers"]

    result, _ = run(lambda *_: None, NUMBERS, goals_of)
    stored = [run_case(prop, Input.from_bytes(data)).example for data in result.covering]
    assert {0, 1, 2, 3} == {min(len(example), 3) for example in stored}
    assert {("goal", "a toy", f"{n} numbers") for n in range(4)} <= set(result.events)


def test_inputs_of_others_are_tried(run: Callable[..., tuple[SliceResult, Worker]]) -> None:
    """Inputs that another worker or night found worth varying are varied."""
    prop = toy()
    seed = next(
        number
        for number in range(10_000)
        if 777 in (run_case(prop, Input(prop.name, number)).example or ())
    )
    given = Input(prop.name, 0, run_case(prop, Input(prop.name, seed)).choices)
    seen: list[list[int]] = []
    run(lambda _, example: seen.append(example), inputs=(given.to_bytes(),), max_cases=400)
    assert any(777 in example for example in seen)


def test_the_first_cases_are_drawn_afresh(
    run: Callable[..., tuple[SliceResult, Worker]],
) -> None:
    """A worker varies inputs in half of the cases, but not in the first ones of a property."""
    _, worker = run(max_cases=FRESH_CASES + 200)
    are_varied = [bool(found.prefix) for found in inputs_of(worker)]
    assert not any(are_varied[:FRESH_CASES])
    assert 60 < sum(are_varied[FRESH_CASES:]) < 140


def test_first_inputs_come_first(
    run: Callable[..., tuple[SliceResult, Worker]],
) -> None:
    """The first inputs are run as they are, each once; the result has those that were not."""
    toys = (lambda *_: None, st.integers(0, 9))
    given = tuple(Input(toy().name, 5, (0, number)).to_bytes() for number in range(7, -1, -1))
    result, worker = run(*toys, first=given, max_cases=5)
    assert given[:5] == tuple(worker.inputs)
    assert given[5:] == result.untried
    result, worker = run(*toys, first=given, max_cases=50)
    assert given == tuple(worker.inputs[: len(given)])
    assert () == result.untried


def test_failures_that_are_known_are_counted(
    run: Callable[..., tuple[SliceResult, Worker]],
) -> None:
    """The first failure of a key is reported, the others are counted with its key."""

    def fail(_target: object, example: int) -> None:
        raise (ValueError if example % 2 else TypeError)("no")

    result, worker = run(fail, st.integers(0, 9), max_cases=60)
    reported = Counter(message.key for message in worker.messages)
    assert {"ValueError", "TypeError"} == {error for _, _, error in reported}
    assert 60 == result.failed == (reported + result.repeated).total()


def inputs_of(worker: Worker) -> list[Input]:
    """Return the inputs of cases, as they were before they were drawn."""
    return [Input.from_bytes(data) for data in worker.inputs]


def test_branches_are_reached_step_by_step(
    run: Callable[..., tuple[SliceResult, Worker]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug behind four nested conditions, which one draw in 160,000 meets, is found."""
    source = branches.branch_source

    def source_of_this_folder(_: object, *, is_sampled: bool) -> coverage.Source:
        return source([Path(__file__).parent], is_sampled=is_sampled)

    monkeypatch.setattr(branches, "branch_source", source_of_this_folder)
    _, worker = run(nested, st.tuples(*[st.integers(0, 19)] * 4), max_cases=8000)
    assert ["ZeroDivisionError"] == [failure.error for failure in worker.messages]


def nested(_: object, example: tuple[int, ...]) -> None:
    """Raise for one input in 160,000."""
    if example[0] == 3:  # noqa: SIM102  # each is a branch of its own
        if example[1] == 14:  # noqa: SIM102
            if example[2] == 15:  # noqa: SIM102
                if example[3] == 9:
                    raise ZeroDivisionError("planted")


def test_choices_are_varied_in_part() -> None:
    """Varied choices are a prefix, or differ in one choice."""
    choices = (3, True, 2.5, 40, b"x")
    found = {vary(choices, random.Random(number)) for number in range(500)}  # noqa: S311
    lengths = {len(one) for one in found}
    assert {0, 1, 2, 3, 4, 5} == lengths
    for one in found:
        changed = [new for new, old in zip(one, choices, strict=False) if new != old]
        assert len(changed) <= 1
        assert len(one) == len(choices) if changed else one == choices[: len(one)]
    assert (3, False, 2.5, 40, b"x") in found
    assert (3, True, 2.5, 41, b"x") in found
    assert (3, True, 2.5, 0, b"x") in found
