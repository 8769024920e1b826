"""Scenarios: what a condition does with one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from conformance.conditions.known_answer import KnownAnswer
from conformance.targets.target import Target


class Scenario(NamedTuple):
    """One way to make a call under a condition.

    Attributes:
        name: Its description, which is also the name of its coverage goal.
        check: Makes the call on a target, and raises `Mismatch` if its answer is not the known one.
    """

    name: str
    check: Callable[[Target], None]


Scenarios: TypeAlias = Callable[[KnownAnswer, KnownAnswer], Iterator[Scenario]]
"""Yields the scenarios of a condition that apply to a call; the second argument is another call of
the same function."""
