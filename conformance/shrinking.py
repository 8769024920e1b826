"""How long failing examples are made smaller, so that one wrong function is told within seconds.

A wrong function fails a dozen tests, its own and those of who uses it, and Hypothesis would shrink
each for up to five minutes. Here a function's failing tests share a purse: the first, which is the
plainest, has half of it, the next half of what is left, and those of its users but a moment.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator

from hypothesis.internal.conjecture import engine

LEAST_SECONDS = 0.25
"""What a failing test has where the purse is empty: enough to leave out most of a large example."""

WARNING = re.compile(r"WARNING: Hypothesis has spent.*?\n\n.*?(\n|$)", re.DOTALL)
"""What Hypothesis tells when its time is over: words that are not true here."""

OURS = (
    "The example may not be the smallest: the failing tests of one function share the time to make "
    "it so. This test alone has more.\n"
)


_LIMITING: list[ShrinkBudgets] = []


class ShrinkBudgets:
    """The seconds that are left for making failing examples smaller, by function.

    Hypothesis reads the limit when a test has first failed, from a constant that its documentation
    lets one change.

    Args:
        seconds: Those that each function has in this process.

    >>> purses = ShrinkBudgets(16)
    >>> purses.allowance("f"), purses.allowance("f", ["g"])
    (8.0, 8.0)
    >>> purses.charge("f", 7)
    >>> purses.allowance("f"), purses.allowance("g"), purses.allowance("g", ["f"])
    (4.5, 8.0, 0.25)
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left: dict[str, float] = {}
        self._failed_at: float | None = None
        self._allowed = seconds

    def allowance(self, function: str, used: Iterable[str] = ()) -> float:
        """Return how long an example may be shrunk that fails a test.

        Args:
            function: The function that the test is about.
            used: The functions that it used; where one of them failed before, that may be why.
        """
        if any(_root(name) in self._left for name in used if _root(name) != _root(function)):
            return LEAST_SECONDS
        return max(self._left.get(_root(function), self.seconds) / 2, LEAST_SECONDS)

    def charge(self, function: str, seconds: float) -> None:
        """Take from a function's purse what a test of it took."""
        self._left[_root(function)] = self._left.get(_root(function), self.seconds) - seconds

    @contextlib.contextmanager
    def limiting(self, function: str, *, uses_all: bool = False) -> Iterator[None]:
        """Limit the shrinking in the test inside, and charge it where it fails.

        Args:
            function: The function that the test is about.
            uses_all: Whether any other failure may be why it fails.
        """
        before, began = engine.MAX_SHRINKING_SECONDS, time.perf_counter()
        self._failed_at = None
        self._allowed = self.allowance(function, list(self._left) if uses_all else ())
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
        """Note that an example failed; at a test's first it is known what the test used."""
        if self._failed_at is None:
            self._failed_at = time.perf_counter()
            _limit(min(self._allowed, self.allowance(function, used)))


def note_failure(function: str, used: Iterable[str]) -> None:
    """Say that an example of a test failed, where somebody limits its shrinking.

    Args:
        function: The function that the test is about.
        used: The functions that it used by then.
    """
    for purses in _LIMITING[-1:]:
        purses.note(function, used)


def in_our_words(told: str) -> str:
    r"""Return what Hypothesis told of a test, without a warning that would mislead.

    >>> in_our_words("WARNING: Hypothesis has spent more than five ...\n\nPLEASE ...") == OURS
    True
    """
    return WARNING.sub(OURS, told)


def _limit(seconds: float) -> None:
    engine.MAX_SHRINKING_SECONDS = seconds  # type: ignore[assignment]  # it is added to a float


def _root(name: str) -> str:
    """Return the class of a method, or the function itself."""
    return name.partition(".")[0]
