"""The type of the function that composite strategies draw with."""

from __future__ import annotations

from typing import Any, Protocol

from hypothesis.strategies import SearchStrategy


class Draw(Protocol):
    """Hypothesis' `draw`, as a composite strategy has it."""

    def __call__(self, strategy: SearchStrategy[Any], /) -> Any:
        """Return a value drawn from the strategy."""
        ...
