"""Shrinking of failing examples: a budget for each function, within Hypothesis' limit."""

from __future__ import annotations

import time

import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from conformance.contracts.check import Check, property_check
from conformance.generation.profiles import Profile
from conformance.generation.shrinking import ShrinkBudgets
from conformance.targets.target import TARGETS, Target

FEW = Profile("few", 100, 100)


def slow(function: str) -> Check:
    """Return a failing check whose examples take long to shrink."""
    strategy = st.lists(st.integers(0, 10**9), min_size=30, max_size=60)

    @property_check(function, lambda _: strategy)
    def is_small(_: Target, numbers: list[int]) -> None:
        """Numbers are small."""
        time.sleep(0.05)  # shrinking it fully takes 4 s
        assert sum(numbers) < 10**9

    return is_small


def seconds_of(budgets: ShrinkBudgets, function: str, **options: bool) -> float:
    """Return how long a failing test of a function takes."""
    test = slow(function).bind(TARGETS["host"], FEW, "minimal")
    began = time.perf_counter()
    with pytest.raises(AssertionError), budgets.limiting(function, **options):
        test()
    return time.perf_counter() - began


def test_the_tests_of_a_function_share_a_budget() -> None:
    """The first has half of it, the next half of what is left; another function has its own."""
    budgets = ShrinkBudgets(4)
    before = engine.MAX_SHRINKING_SECONDS
    first, second = (seconds_of(budgets, "f") for _ in range(2))
    assert 2 <= first < 4
    assert second < first
    assert 2 == budgets.allowance("g")
    assert before == engine.MAX_SHRINKING_SECONDS
