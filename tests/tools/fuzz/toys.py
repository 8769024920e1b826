"""Toy properties, for tests that need none of the harness' real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.contracts.check import Check
from conformance.coverage.presets import MINIMAL
from conformance.generation.profiles import Kind
from conformance.targets.target import TARGETS
from kvtwin.fuzz.cases.properties import Property

NUMBERS = st.lists(st.integers(0, 1000), max_size=20)


def toy(
    body: Callable[[Any, Any], object] = lambda *_: None,
    strategy: st.SearchStrategy[Any] = NUMBERS,
    goals_of: Callable[[Any], Sequence[str]] = lambda _: (),
) -> Property:
    """Return a property, by default one of lists of numbers that always holds."""
    check = Check(
        "a toy", Kind.LAW, lambda _: strategy, body, "A toy.", (), goals_of, presets=(MINIMAL,)
    )
    return Property("toys:toy", check, TARGETS["host"])
