"""Which of several calls would interfere most with another call if they shared their arguments.

An implementation may keep an argument where calls of other threads change it. That shows only if
the other call's value, in place of the call's own, makes another answer.
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
"""Calls that are drawn, of which another thread makes one."""


def most_different(expected: KnownAnswer, others: Sequence[Call]) -> Call:
    """Return the call with the most arguments that would change a call's answer, each alone."""
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
    return expected.can_tell_from(answer)
