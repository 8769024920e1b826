"""Cases: their inputs are serialized and drawn again, and their outcomes are recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.coverage.goals import COVERAGE
from conformance.targets.target import Target
from kvtwin.fuzz.cases.case import Input, Status, run_case, run_data
from kvtwin.fuzz.cases.properties import Subject, properties_of
from tests.tools.fuzz.toys import toy

SLOTS = "test_slots::test_compute_slot_mapping@host"


@pytest.mark.parametrize(
    "prefix", [(), (1, True, 2.5, "text", b"bytes"), (0, -(2**70), float("inf"), "é\x00")]
)
def test_an_input_is_read_as_it_was_written(prefix: tuple[Any, ...]) -> None:
    """Choices of each type survive serialization."""
    found = Input("a property@host", 2**64 - 1, prefix)
    assert found == Input.from_bytes(found.to_bytes())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'["a", 1]', b'["a", 1, "//8="]', b"\xff"])
def test_other_bytes_are_no_input(data: bytes) -> None:
    """Bytes that a dying worker did not finish writing are rejected."""
    with pytest.raises((ValueError, TypeError)):
        Input.from_bytes(data)


def test_an_input_is_drawn_again() -> None:
    """The same seed and prefix give the same choices; all choices are enough without the seed."""
    prop = properties_of(Subject(target="host", functions="compute_slot_mapping"))[SLOTS]
    for seed in range(5):
        first = run_case(prop, Input(SLOTS, seed))
        assert Status.PASSED is first.status
        assert first.choices == run_case(prop, Input(SLOTS, seed)).choices
        again = run_case(prop, Input(SLOTS, 99, first.choices))
        assert (first.choices, list(first.goals)) == (again.choices, list(again.goals))
        assert ["compute_slot_mapping"] == sorted(again.used)
        half = first.choices[: len(first.choices) // 2]
        assert half == run_case(prop, Input(SLOTS, seed, half)).choices[: len(half)]


def test_inputs_are_noted_before_they_are_checked() -> None:
    """An input is noted before the body runs, which may crash the process."""
    noted: list[bytes] = []
    seen: list[int] = []

    def body(target: Target, example: int) -> None:
        del target, example
        seen.append(len(noted))

    prop = toy(body, st.integers(0, 1000))
    input_ = Input(prop.name, 5)
    case = run_case(prop, input_, noted.append)
    data = ConjectureData(random=None, prefix=case.choices)
    run_data(prop, data, noted.append)
    assert [1, 2] == seen
    assert [input_, Input(prop.name, 0, case.choices)] == [Input.from_bytes(n) for n in noted]


def test_what_becomes_of_a_case() -> None:
    """A case passes, fails with the raised exception, or is invalid."""

    def body(target: Target, example: int) -> None:
        assert isinstance(target, Target)
        assume(example != 2)
        if example == 1:
            raise ZeroDivisionError("planted")

    found = {number: run_case(toy(body, st.just(number)), Input("toy", 0)) for number in range(3)}
    assert [Status.PASSED, Status.FAILED, Status.INVALID] == [one.status for one in found.values()]
    assert isinstance(found[1].error, ZeroDivisionError)
    assert 1 == found[1].example
    nothing = run_case(toy(body, st.integers().filter(lambda _: False)), Input("toy", 0))
    assert Status.INVALID is nothing.status


def test_an_exit_is_a_failure() -> None:
    """A function that calls `sys.exit` fails the case and does not end the worker."""

    def body(target: Target, example: int) -> None:
        raise SystemExit(f"{target.name} {example}")

    case = run_case(toy(body, st.just(3)), Input("toy", 0))
    assert Status.FAILED is case.status
    assert "host 3" == str(case.error)


def test_a_strategy_that_raises_fails() -> None:
    """A case whose strategy raises has the error, but neither an example nor goals."""

    @st.composite
    def broken(draw: Any) -> int:  # noqa: ANN401  # Hypothesis' own
        raise ZeroDivisionError(f"planted {draw(st.integers(0, 9))}")

    case = run_case(toy(strategy=broken()), Input("toy", 0))
    assert Status.FAILED is case.status
    assert isinstance(case.error, ZeroDivisionError)
    assert (None, ()) == (case.example, tuple(case.goals))
    assert 1 <= len(case.choices)


def test_an_example_that_is_none_meets_goals() -> None:
    """None is an example like any other: it does not mean that nothing was drawn."""
    prop = toy(strategy=st.none(), goals_of=lambda example: [f"it is {example}"])
    case = run_case(prop, Input("toy", 0))
    assert (Status.PASSED, ("it is None",)) == (case.status, case.goals)


def test_goals_of_a_running_check_count() -> None:
    """Goals that a check reaches while it runs are added to those of the example."""

    def body(*_: object) -> None:
        COVERAGE.reached["a toy", "found"] += 1

    case = run_case(toy(body, goals_of=lambda _: ["drawn"]), Input("toy", 0))
    assert ("drawn", "found") == case.goals


@pytest.mark.usefixtures("fuzz_profile")
def test_a_state_machine_is_drawn_again() -> None:
    """The steps of a state machine are choices that can be drawn again."""
    found = properties_of(Subject(target="host", functions="stateful test"))
    name, prop = next(iter(found.items()))
    assert prop.is_stateful
    first = run_case(prop, Input(name, 3))
    assert Status.PASSED is first.status
    again = run_case(prop, Input(name, 0, first.choices))
    assert dataclasses.replace(first, example=None) == dataclasses.replace(again, example=None)
