"""Estimate how much coverage a night has not seen yet, from how often it met each event.

Each case meets some events: goals, pairs of goals, branches. The number of events that only one
case met indicates how many are left: if most events were met once, many are left; if each was met
many times, few are.

- The **Good-Turing estimate** is the share of all observations that were of an event met once. It
  is the probability that the next observation is of a new event. Divided by cases instead, it is
  the expected number of new events in the next case.
- **Chao's lower bound** (Chao2, in its bias-corrected form) is the number of events that can be met
  and were not. With `once` and `twice` the events met by one and by two cases, and n cases, it is
  `(n - 1) / n * once * (once - 1) / (2 * (twice + 1))`.

Both hold for more cases drawn *in the same way*, as if each were drawn independently. The night
prefers properties that still meet new events, so the numbers are guides to an order of magnitude.
They do not include events that this way of drawing cannot reach, nor bugs: a bug may lie in a
combination that no kind of coverage counts.

I. J. Good, The population frequencies of species and the estimation of population parameters, 1953;
A. Chao, Estimating the population size for capture-recapture data with unequal catchability, 1987;
M. Boehme, STADS: software testing as species discovery, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvtwin.fuzz.report.record import Estimate


def estimate_unseen(
    counts: Iterable[int], num_cases: int, *, max_unseen: int | None = None
) -> Estimate | None:
    """Estimate the events that a night has not met.

    Args:
        counts: For each event, how many cases met it.
        num_cases: The cases of the night.
        max_unseen: The number of events that were not met, if it is known; a bound of the estimate.

    Returns:
        The estimate; None without cases or observations.

    Of ten cases, 1 of 8 observations is of an event that was met once: with probability 1/8 the
    next observation is new.

    >>> found = estimate_unseen([5, 2, 1], 10)
    >>> found.share_new, found.new_per_case, found.unseen_at_least
    (0.125, 0.1, 0)

    A hundred events that were met once and ten that were met twice indicate many more.

    >>> estimate_unseen([1] * 100 + [2] * 10, 1000).unseen_at_least
    450
    >>> estimate_unseen([1] * 100 + [2] * 10, 1000, max_unseen=40).unseen_at_least
    40

    If each event was met many times, none is left.

    >>> estimate_unseen([50] * 7, 1000).share_new
    0.0
    >>> estimate_unseen([], 0) is None
    True
    """
    numbers = [count for count in counts if count]
    observations = sum(numbers)
    if not num_cases or not observations:
        return None
    once, twice = numbers.count(1), numbers.count(2)
    unseen = math.ceil((num_cases - 1) * once * (once - 1) / (num_cases * 2 * (twice + 1)))
    return Estimate(
        cases=num_cases,
        observations=observations,
        once=once,
        twice=twice,
        share_new=once / observations,
        new_per_case=once / num_cases,
        unseen_at_least=unseen if max_unseen is None else min(unseen, max_unseen),
    )
