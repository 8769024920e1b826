"""Limits how long failing examples are shrunk, so that a wrong function is reported in seconds.

A wrong function fails a dozen tests, its own and those of functions that use it, and Hypothesis
would shrink each for up to five minutes. Here the failing tests of a function share a budget: the
first one gets half of it, the next one half of the rest, and tests of its users almost nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator

from hypothesis.internal.conjecture import engine

MIN_SECONDS = 0.25
"""The minimum budget of a test: enough to remove most of a large example."""

WARNING = re.compile(r"WARNING: Hypothesis has spent")
"""Hypothesis' warning that shrinking took too long."""

SHRINK_NOTE = "Shrinking stopped at its time limit; for a smaller example, run only this test"


_LIMITING: list[ShrinkBudgets] = []


class ShrinkBudgets:
    """The seconds that are left for shrinking failing examples, by function.

    Hypothesis reads the limit from a constant when a test first fails; its documentation allows
    changing the constant.

    Args:
        seconds: The budget of each function in this process.

    Attributes:
        left: The remaining budget of each function with a failed test.

    >>> budgets = ShrinkBudgets(16)
    >>> budgets.allowance("f"), budgets.allowance("f", ["g"])
    (8.0, 8.0)
    >>> budgets.charge("f", 7)
    >>> budgets.allowance("f"), budgets.allowance("g"), budgets.allowance("g", ["f"])
    (4.5, 8.0, 0.25)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.left: dict[str, float] = {}
        self._failed_at: float | None = None
        self._allowed = seconds

    def allowance(self, function: str, used: Iterable[str] = ()) -> float:
        """Return how long a failing example of a function may be shrunk.

        If one of the functions that it used failed before, that is the likely cause.
        """
        if any(_root(name) in self.left for name in used if _root(name) != _root(function)):
            return MIN_SECONDS
        return max(self.left.get(_root(function), self.seconds) / 2, MIN_SECONDS)

    def charge(self, function: str, seconds: float) -> None:
        """Subtract the time of a test from the budget of a function."""
        self.left[_root(function)] = self.left.get(_root(function), self.seconds) - seconds

    @contextlib.contextmanager
    def limiting(self, function: str, *, uses_all: bool = False) -> Iterator[None]:
        """Limit shrinking in a test of a function, and charge its time if it fails.

        If `uses_all`, any other failure may be its cause.
        """
        before, began = engine.MAX_SHRINKING_SECONDS, time.perf_counter()
        self._failed_at = None
        self._allowed = self.allowance(function, list(self.left) if uses_all else ())
        _limit(self._allowed)
        _LIMITING.append(self)
        try:
            yield
        except (Exception, SystemExit):
            self.charge(function, time.perf_counter() - (self._failed_at or began))
            raise
        finally:
            _LIMITING.remove(self)
            _limit(before)

    def note(self, function: str, used: Iterable[str]) -> None:
        """Note a failing example; the first one sets the limit, by the functions used so far."""
        if self._failed_at is None:
            self._failed_at = time.perf_counter()
            _limit(min(self._allowed, self.allowance(function, used)))


def note_failure(function: str, used: Iterable[str]) -> None:
    """Report a failing example to the active shrink budgets, and the functions used so far."""
    for budgets in _LIMITING[-1:]:
        budgets.note(function, used)


def _limit(seconds: float) -> None:
    engine.MAX_SHRINKING_SECONDS = seconds  # type: ignore[assignment]  # it is added to a float


def _root(name: str) -> str:
    """Return the class of a method, or the function itself."""
    return name.partition(".")[0]
