"""Hypothesis' record of what a case draws, with the choices and nothing else.

Hypothesis also records which strategy drew which choices, with what arguments and in what time: for
its shrinker, its mutations and its messages. A case is drawn without these, which saves two thirds
of the time. One that fails is drawn again by Hypothesis itself, to be made small.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from hypothesis.control import BuildContext
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal.lazy import unwrap_strategies

T = TypeVar("T")


class CaseData(ConjectureData):
    """A record of choices without spans: the same choices give the same example."""

    def draw(
        self, strategy: SearchStrategy[T], label: int | None = None, observe_as: str | None = None
    ) -> T:
        """Draw a value from a strategy; a strategy that was made wrongly raises where it draws."""
        del label, observe_as
        drawn: T = unwrap_strategies(strategy).do_draw(self)
        return drawn

    def start_span(self, label: int) -> None:
        """Note no span, but its depth, which Hypothesis' collections compare."""
        del label
        self.depth += 1

    def stop_span(self, *, discard: bool = False) -> None:
        """Note the depth after a span."""
        del discard
        self.depth -= 1

    def track_arg_label(self, label: str) -> AbstractContextManager[dict[str, Any]]:
        """Note no argument of `builds`."""
        del label
        return contextlib.nullcontext({})


class CaseContext(BuildContext):
    """The context of such a record, which does not remember how objects were built."""

    def record_call(self, *args: object, **kwargs: object) -> None:
        """Note no call."""
