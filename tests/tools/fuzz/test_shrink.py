"""Shrinking finds the smallest failing input, also if Hypothesis' shrinker does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.errors import StopTest
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData

from kvtwin.fuzz.findings.shrink import Attempt, shrink


@st.composite
def batches(draw: st.DrawFn) -> list[int]:
    """Draw the tokens of requests: a list, or a fixed batch of five in one choice."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, 9), min_size=1, max_size=40))
    return draw(st.sampled_from([[1, 0, 0, 0, 7]]))


@st.composite
def sliced_batches(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw the tokens of requests, and then where a slice of them starts."""
    batch = draw(st.lists(st.integers(0, 9), min_size=1, max_size=40))
    return batch, draw(st.integers(0, len(batch)))


def drawn(data: ConjectureData, strategy: st.SearchStrategy[object]) -> object:
    """Return the value that data draws; None if drawing stops early."""
    with BuildContext(data, is_final=False, wrapped_test=drawn):
        try:
            return data.draw(strategy)
        except StopTest:
            return None


def of_choices(choices: tuple[ChoiceT, ...]) -> ConjectureData:
    """Return data that replays choices."""
    return ConjectureData(random=random.Random(0), prefix=choices)  # noqa: S311


def an_input(attempt: Attempt, is_wanted: Callable[[int], bool]) -> tuple[ChoiceT, ...]:
    """Return the first failing input, by seed, whose number of requests is wanted."""
    for seed in range(10_000):
        data = ConjectureData(random=random.Random(seed))  # noqa: S311
        requests = attempt(data)
        if requests is not None and is_wanted(requests):
            return data.choices
    raise AssertionError("no seed gives such an input")


def starts_late(data: ConjectureData) -> int | None:
    """Fail if a slice starts at the third request or later, after at least one token."""
    found = drawn(data, sliced_batches())
    if not isinstance(found, tuple):
        return None
    batch, start = found
    return len(batch) if start > 1 and sum(batch[:start]) else None


def test_what_must_change_together() -> None:
    """Requests before the start of a slice are removed together with a change of its start."""
    choices = an_input(starts_late, lambda requests: requests > 20)
    found = shrink(choices, starts_late, lambda: False)
    assert ([0, 1], 2) == drawn(of_choices(found), sliced_batches())


def test_requests_count_before_choices() -> None:
    """An input of fewer requests is smaller, even if it has more choices."""

    def has_7(data: ConjectureData) -> int | None:
        batch = drawn(data, batches())
        return len(batch) if isinstance(batch, list) and len(batch) > 1 and 7 in batch else None

    for is_wanted in (lambda n: n == 5, lambda n: n > 5):
        found = shrink(an_input(has_7, is_wanted), has_7, lambda: False)
        assert [0, 7] == drawn(of_choices(found), batches())


def test_what_has_no_requests() -> None:
    """An input without requests is shrunk as Hypothesis does it."""
    numbers = st.lists(st.integers(0, 1000), max_size=20)

    def has_large(data: ConjectureData) -> int | None:
        found = drawn(data, numbers)
        is_failing = isinstance(found, list) and sum(number > 100 for number in found) > 1
        return 0 if is_failing else None

    found = shrink(an_input(has_large, lambda _: True), has_large, lambda: False)
    assert [101, 101] == drawn(of_choices(found), numbers)


def test_no_time_leaves_an_input_as_it_is() -> None:
    """Without time an input stays as it is."""
    choices = an_input(starts_late, lambda requests: requests > 20)
    assert choices == shrink(choices, starts_late, lambda: True)


@pytest.mark.parametrize("tries", [1, 30])
def test_time_that_ends_leaves_what_still_fails(tries: int) -> None:
    """When the time ends, the result is the input shrunk so far, which still fails."""
    choices = an_input(starts_late, lambda requests: requests > 20)
    tried = []

    def attempt(data: ConjectureData) -> int | None:
        tried.append(data)
        return starts_late(data)

    found = shrink(choices, attempt, lambda: len(tried) >= tries)
    assert len(tried) <= tries + 1
    assert starts_late(of_choices(found))
    assert len(found) <= len(choices)


def test_what_does_not_fail_again_stays() -> None:
    """A flaky failure is not exchanged for an input that passes."""
    assert (True, 3) == shrink((True, 3), lambda _: None, lambda: False)


def test_limits_of_hypothesis_are_put_back() -> None:
    """Hypothesis' process-wide limits are restored."""
    before = engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS
    seen = []

    def attempt(data: ConjectureData) -> int | None:
        seen.append(engine.MAX_SHRINKS)
        return starts_late(data)

    shrink(an_input(starts_late, lambda _: True), attempt, lambda: False)
    assert max(seen) > before[0]
    assert before == (engine.MAX_SHRINKS, engine.MAX_SHRINKING_SECONDS)
