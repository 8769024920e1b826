"""Draws and runs the examples of a test: those that Hypothesis would draw, in less time.

For each example Hypothesis records which strategy drew what, caches the record, and seeds the
random generators of the process, which took a quarter of a run's time. So examples are drawn here,
with the same choices from the same seed, and without these. If one fails, Hypothesis draws the same
examples, shrinks the one that fails, and reports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import hypothesis
from hypothesis import Phase, Verbosity
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.internal.conjecture.choice import ChoiceTemplate
from hypothesis.internal.entropy import deterministic_PRNG
from hypothesis.statistics import note_statistics
from hypothesis.strategies import SearchStrategy

from conformance.generation.choice_data import ChoiceContext, ChoiceData
from conformance.generation.hypothesis_provider import RepeatableProvider
from conformance.targets.target import RAISED

SIMPLEST: Final = (ChoiceTemplate("simplest", count=None),)
"""The choices of the first example: each is the simplest."""

MAX_REJECTED: Final = 20
"""After more rejected examples, Hypothesis runs the test and decides if they are too many."""

PASSED_AGAIN: Final = "The same examples passed when they were run again."
"""The note of a failure that Hypothesis cannot repeat."""

Test = Callable[[Any], None]
"""A test of one example, its argument `example`."""


def run_examples(
    test: Test,
    strategy: SearchStrategy[Any],
    options: hypothesis.settings,
    seed: int,
    key: bytes = b"",
) -> None:
    """Run a test on the examples that Hypothesis would draw, and those of its database first.

    Args:
        test: The test.
        strategy: The strategy of examples.
        options: Hypothesis' settings. Without `Phase.shrink`, a failure is raised as it is.
        seed: The seed of the draws.
        key: The key of the test in the database.
    """
    __tracebackhide__ = True
    failure, database = None, options.database
    is_stored = database is not None and any(True for _ in database.fetch(key))
    is_quiet = options.verbosity <= Verbosity.normal
    try:
        if is_quiet and not is_stored and _all_pass(test, strategy, options, seed):
            return
    except RAISED as error:
        if Phase.shrink not in options.phases:
            raise
        failure = error
    # In this order, since `seed` removes the database from settings that were applied before.
    drawn = options(hypothesis.seed(seed)(hypothesis.given(example=strategy)(test)))
    drawn._hypothesis_internal_database_key = key  # type: ignore[attr-defined]  # noqa: SLF001
    drawn()
    if failure is not None:
        failure.add_note(PASSED_AGAIN)
        raise failure


def _all_pass(
    test: Test, strategy: SearchStrategy[Any], options: hypothesis.settings, seed: int
) -> bool:
    """Run a test on its examples; return False if too many are rejected."""
    __tracebackhide__ = True
    random = Random(seed)  # noqa: S311  # no secret
    cases: list[dict[str, Any]] = []
    num_valid, began = 0, time.perf_counter()
    with deterministic_PRNG():
        while num_valid < options.max_examples:
            if len(cases) - num_valid > MAX_REJECTED:
                return False
            prefix = () if cases else SIMPLEST
            data = ChoiceData(random=random, provider=RepeatableProvider, prefix=prefix)
            cases.append(_run_example(test, strategy, data))
            num_valid += cases[-1]["status"] == "valid"
    phase: Any = {
        "duration-seconds": time.perf_counter() - began,
        "test-cases": cases,
        "distinct-failures": 0,
        "shrinks-successful": 0,
    }
    stopped = f"settings.max_examples={options.max_examples}"
    note_statistics({"generate-phase": phase, "stopped-because": stopped})
    return True


def _run_example(test: Test, strategy: SearchStrategy[Any], data: ChoiceData) -> dict[str, Any]:
    """Draw an example and run a test on it; return its entry in Hypothesis' statistics."""
    __tracebackhide__ = True
    status = "valid"
    began = drawn = time.perf_counter()
    with ChoiceContext(data, is_final=False, wrapped_test=test):
        try:
            example = data.draw(strategy)
            drawn = time.perf_counter()
            test(example)
        except UnsatisfiedAssumption:
            status = "invalid"
        except StopTest:
            status = data.status.name.lower()
    ended = time.perf_counter()
    return {
        "status": status,
        "runtime": ended - began,
        "drawtime": drawn - began,
        "gctime": 0.0,
        "events": [],
    }


def draw_examples(strategy: SearchStrategy[Any], number: int) -> list[Any]:
    """Return examples of a strategy, the same each time; a test may call this while it runs.

    Args:
        strategy: The strategy.
        number: How many are drawn; those that are rejected are left out.

    >>> from hypothesis import strategies as st
    >>> draw_examples(st.integers(0, 9), 3) == draw_examples(st.integers(0, 9), 3)
    True
    """
    random, found = Random(0), list[Any]()  # noqa: S311  # no secret
    for _ in range(number):
        data = ChoiceData(random=random, provider=RepeatableProvider, prefix=())
        _run_example(found.append, strategy, data)
    return found
