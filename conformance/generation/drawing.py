"""Draws examples of a strategy without a test, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import DataObject, SearchStrategy, data

from conformance.generation.hypothesis_provider import REPEATABLE

Drawn = TypeVar("Drawn")


def drawn(
    strategy: SearchStrategy[Drawn],
    number: int,
    name: str,
    look: Callable[[Drawn], None] = lambda _: None,
) -> list[Drawn]:
    """Return at most `number` examples of a strategy, the same each time for a name.

    `look` is called with each example.
    """
    found: list[Drawn] = []

    @seed(int.from_bytes(name.encode()[-8:], "big"))
    @settings(
        max_examples=number,
        backend=REPEATABLE,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data())
    def collect(source: DataObject) -> None:
        example = source.draw(strategy)
        look(example)
        found.append(example)

    collect()
    return found
