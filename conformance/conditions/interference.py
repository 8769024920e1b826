"""Selects the call that interferes most with another call if an argument is shared by mistake.

An implementation may keep an argument where calls of other threads overwrite it. A test detects
that only if the other call's value leads to a different answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from conformance.conditions.known_answer import KnownAnswer
from conformance.targets.target import RAISED
from conformance.values.call import Call

SINGLE: Final = (bool, int, float, str, np.generic)
"""The types of arguments that are one number or name."""

NUM_CANDIDATES: Final = 4
"""Calls that are drawn for another thread, which makes one of them."""


def most_different(expected: KnownAnswer, others: Sequence[Call]) -> Call:
    """Return the call with the most arguments that would each change the expected answer."""
    if len(others) == 1:
        return others[0]
    given = expected.call.arguments
    names = [name for name, value in given.items() if isinstance(value, SINGLE)]
    most, chosen = -1, others[0]
    for other in others:
        number = sum(_matters(expected, other, name) for name in names)
        if number > most:
            most, chosen = number, other
        if number == len(names):
            break
    return chosen


def _matters(expected: KnownAnswer, other: Call, name: str) -> bool:
    """Return whether one argument of another call would change an answer."""
    call = expected.call
    value = other.arguments.get(name)
    if not isinstance(value, SINGLE) or value == call[name]:
        return False
    try:
        answer = KnownAnswer.of(expected.contract, call.replacing(**{name: value}))
    except RAISED:
        return True
    return expected.differs_from(answer)
