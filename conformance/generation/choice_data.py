"""A fast `ConjectureData` of Hypothesis, which records only the choices of an example.

Hypothesis also records which strategy drew which choices, with what arguments and in what time: for
its shrinker, its mutations and its messages. An example is drawn without these, which saves two
thirds of the time. One that fails is drawn again by Hypothesis itself, to be shrunk.
"""

from __future__ import annotations

import contextlib
import dataclasses
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from hypothesis.control import BuildContext
from hypothesis.internal.conjecture.choice import ChoiceT, choice_size
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal.lazy import unwrap_strategies

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class _Choice:
    """A choice without its constraints, in the place of Hypothesis' `ChoiceNode`."""

    value: ChoiceT


class ChoiceData(ConjectureData):
    """A record of choices without spans: the same choices give the same example."""

    def draw(
        self, strategy: SearchStrategy[T], label: int | None = None, observe_as: str | None = None
    ) -> T:
        """Draw a value from a strategy; an invalid strategy raises when it draws."""
        del label, observe_as
        unwrapped: Any = unwrap_strategies(strategy)  # type: ignore[no-untyped-call]  # Hypothesis'
        drawn: T = unwrapped.do_draw(self)
        return drawn

    def start_span(self, label: int) -> None:
        """Record only the depth of a span, which Hypothesis' collections compare."""
        del label
        self.depth += 1

    def stop_span(self, *, discard: bool = False) -> None:
        """Record the depth after a span."""
        del discard
        self.depth -= 1

    def _draw(
        self, choice_type: Any, constraints: Any, *, observe: bool, forced: Any | None
    ) -> Any:
        """Draw an int or a bool from the provider; other kinds and given choices the usual way."""
        is_given = forced is not None or (self.prefix and self.index < len(self.prefix))
        if is_given or not observe or choice_type not in {"boolean", "integer"}:
            return super()._draw(choice_type, constraints, observe=observe, forced=forced)
        value = getattr(self.provider, f"draw_{choice_type}")(**constraints)
        self.length += choice_size(value)
        if self.length > self.max_length:
            self.mark_overrun()
        self._nodes.append(_Choice(value))  # type: ignore[arg-type]  # it stands for a node
        return value

    def _pooled_constraints(self, choice_type: Any, constraints: Any) -> Any:
        """Return the constraints of a choice without storing them."""
        del choice_type
        return constraints

    def track_arg_label(self, label: str) -> AbstractContextManager[dict[str, Any]]:  # type: ignore[override]  # narrower
        """Do not record an argument of `builds`."""
        del label
        return contextlib.nullcontext({})


class ChoiceContext(BuildContext):
    """The context of `ChoiceData`, which does not record how objects were built."""

    def record_call(self, *args: object, **kwargs: object) -> None:
        """Do not record a call."""
