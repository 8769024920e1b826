"""How grave a wrong answer is for the maintainer of an engine, by the smallest call that shows it.

- wrong value: an ordinary call, after which something is wrong.
- crash: an ordinary call that raises, does not return, or gives None in place of a value or field.
- borderline: a call with an empty array or no tokens, with an idle request before another one, or
  in another memory layout, mode of torch or class of objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from conformance.harness.story import Difference, Failure, Verdict

RANKS: Final = 5
"""The ranks of failures are below this; those of the last one are no wrong answers."""


def severity_of(failure: Failure) -> str:
    difference = failure.difference
    if difference.verdict is not Verdict.WRONG_ANSWER or failure.story.changed is not None:
        return ""
    if failure.needs_circumstances or is_edge(failure.arguments):
        return "borderline"
    got = difference.got
    is_crash = isinstance(got, BaseException) or got is None or difference.where == "the call"
    return "crash" if is_crash else "wrong value"


def takes_long(failure: Failure) -> bool:
    """Return whether a call did not return in time: each further one takes as long."""
    difference = failure.difference
    return difference.where == "the call" and isinstance(difference.got, str)


def is_edge(arguments: Mapping[str, Any]) -> bool:
    """Return whether an array or batch is empty, or has an idle request before another one.

    Idle requests at the end are ordinary: they pad a batch.
    """
    for name, value in arguments.items():
        is_starts = name.startswith("query_start_loc")
        starts = value if is_starts else getattr(value, "query_start_loc", None)
        if isinstance(value, np.ndarray) and value.ndim and not len(value):
            return True
        if isinstance(starts, np.ndarray) and starts.ndim == 1:
            busy = np.flatnonzero(np.diff(starts))
            if not len(busy) or busy[-1] >= len(busy):
                return True
    return False


def cause_of(failure: Failure) -> tuple[str, str, str]:
    """Return what the failures of one cause have in common: the field, or the exception."""
    return (failure.story.function, *place_of(failure.difference))


def place_of(difference: Difference) -> tuple[str, str]:
    got = difference.got
    is_named = got is None or isinstance(got, BaseException)
    kind = f"{difference.kind} {type(got).__name__}" if is_named else difference.kind
    return kind, re.sub(r"\[[^]]*\]", "", difference.where)


def rank_of(failure: Failure) -> int:
    """Return 0 for the gravest; those that need an earlier call come before borderline ones."""
    ranks = {"wrong value": 0, "crash": 1, "borderline": 3}
    rank = ranks.get(severity_of(failure), RANKS - 1)
    return 2 if failure.condition and rank < 2 else rank


def gravity_of(failure: Failure) -> tuple[int, int]:
    """Return a key that sorts failures: the gravest first."""
    return [*Verdict].index(failure.difference.verdict), rank_of(failure)
