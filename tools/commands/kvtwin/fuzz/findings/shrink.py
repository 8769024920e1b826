"""Shrink a failing input: to the fewest requests first, then to the simplest for Hypothesis.

Hypothesis' shrinker does most of it, but it changes one thing at a time: it cannot remove a request
if a later number, like the start of a slice, must change too. Random draws can.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine
from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.engine import ConjectureRunner, RunIsComplete
from hypothesis.internal.escalation import InterestingOrigin

from conformance.generation.hypothesis_provider import FreshProvider

Attempt: TypeAlias = Callable[[ConjectureData], int | None]
"""Draws and checks an input; returns its number of requests if it is the same failure, or None."""

DRAWS: Final = 200
"""The number of random draws in the search for a smaller input."""

FEW_CHOICES: Final = 64
"""The most choices of an input that goes straight to Hypothesis' shrinker."""

MAX_CANDIDATES: Final = 16
"""A random draw keeps fewer than this many of the first choices."""

REQUESTS: Final = "requests"


@dataclasses.dataclass(frozen=True)
class _Failing:
    """An input that fails.

    Attributes:
        choices: Its choices.
        requests: Its number of requests; infinite if it was not tried yet.
    """

    choices: tuple[ChoiceT, ...]
    requests: float = math.inf

    @property
    def size(self) -> tuple[float, int]:
        """The measure to minimize."""
        return self.requests, len(self.choices)


class _TimeIsOverError(KeyboardInterrupt):
    """Ends the shrinker early: a KeyboardInterrupt, which it passes on."""


def shrink(
    choices: Sequence[ChoiceT], attempt: Attempt, is_late: Callable[[], bool]
) -> tuple[ChoiceT, ...]:
    """Return the smallest choices found that still fail.

    Args:
        choices: Choices that fail.
        attempt: Tries other choices.
        is_late: Whether to stop.
    """
    found = _Failing(tuple(choices))
    if len(choices) > FEW_CHOICES:  # the shrinker would remove 300 requests one at a time
        found = _draw_smaller(found, attempt, is_late, enough=FEW_CHOICES)
    while True:
        found = _simplify(found, attempt, is_late)
        smaller = _draw_smaller(found, attempt, is_late)
        if smaller is found:
            return found.choices
        found = smaller


def _simplify(found: _Failing, attempt: Attempt, is_late: Callable[[], bool]) -> _Failing:
    """Shrink an input with Hypothesis' shrinker, without adding requests."""
    origin = InterestingOrigin(AssertionError, "", 0, (), ())

    def test(data: ConjectureData) -> None:
        if is_late():
            raise _TimeIsOverError
        requests = attempt(data)
        if requests is not None and requests <= found.requests and not data.frozen:
            data.target_observations[REQUESTS] = requests
            data.mark_interesting(origin)

    options = settings(
        database=None, phases=[Phase.shrink], max_examples=10**9, report_multiple_bugs=True
    )
    with _without_limits():
        runner = ConjectureRunner(test, settings=options, random=random.Random(0))  # noqa: S311
        with contextlib.suppress(RunIsComplete, _TimeIsOverError):
            runner.cached_test_function(found.choices)
            runner.shrink_interesting_test_cases()
        simplest = runner.interesting_test_cases.get(origin)
    if simplest is None:
        return found
    return _Failing(tuple(simplest.choices), simplest.target_observations[REQUESTS])


def _draw_smaller(
    found: _Failing, attempt: Attempt, is_late: Callable[[], bool], enough: int = 0
) -> _Failing:
    """Return a smaller failing input with the same first choices, if random draws find one.

    Drawing stops as soon as an input has no more than `enough` choices.
    """
    chance = random.Random(0)  # noqa: S311  # no secret
    for _ in range(DRAWS):
        if len(found.choices) <= enough or is_late():
            break
        maximum = len(found.choices) - 1
        if 0 < found.requests < math.inf:
            maximum = max(maximum, FEW_CHOICES)  # more choices may make fewer requests
        data = ConjectureData(
            random=chance,
            provider=FreshProvider,
            prefix=found.choices[: chance.randrange(min(len(found.choices), MAX_CANDIDATES))],
            max_choices=maximum,
        )
        requests = attempt(data)
        if requests is not None and not data.frozen:
            found = min(found, _Failing(tuple(data.choices), requests), key=lambda one: one.size)
    return found


@contextlib.contextmanager
def _without_limits() -> Iterator[None]:
    """Remove Hypothesis' limits on shrinking: `shrink` has its own deadline."""
    before = engine.MAX_SHRINKING_SECONDS, engine.MAX_SHRINKS
    engine.MAX_SHRINKING_SECONDS = engine.MAX_SHRINKS = 10**9
    try:
        yield
    finally:
        engine.MAX_SHRINKING_SECONDS, engine.MAX_SHRINKS = before
