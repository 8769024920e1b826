"""What a state machine decides of a step before it knows the engine's state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.life.engine import Engine
    from conformance.life.request import Request


UNCUT = 2**31
"""A chunk that holds any prompt."""


class Preference(enum.Enum):
    """Which of the running requests something is rather done to: the rare ones are rarely met."""

    ANY = "any"
    WITH_REJECTED_DRAFTS = "with rejected drafts behind it"
    IN_PREFILL = "in mid-prefill"
    SHARING = "that shares blocks"


@dataclass(frozen=True)
class Choice:
    """A running request, chosen before it is known which there are.

    Attributes:
        preference: What it is like, if one is like that.
        which: Its number among these.
    """

    preference: Preference
    which: int

    def among(self, engine: Engine) -> Request:
        """Return the request that is meant.

        Args:
            engine: With at least one running request.
        """
        is_so = {
            Preference.ANY: lambda _: True,
            Preference.WITH_REJECTED_DRAFTS: lambda request: request.num_rejected > 0,
            Preference.IN_PREFILL: lambda request: request.is_in_prefill,
            Preference.SHARING: engine.shares,
        }[self.preference]
        liked = [request for request in engine.running if is_so(request)] or engine.running
        return liked[self.which % len(liked)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a step is to be scheduled, and what is to come of it.

    Attributes:
        most_tokens: Of the step; None: the engine's budget.
        chunk: The most tokens of a request.
        idle: Positions among the running requests of those that sit the step out.
        num_drafts: Draft tokens of each decode, as far as the engine has them.
        accepted: How many of these are accepted, of the decodes by turns.
        admits: Whether waiting requests are let in.
        preempts: Who is preempted before anything else is decided.
        ends: Who ends before that, without all its tokens.
    """

    most_tokens: int | None = None
    chunk: int = UNCUT
    idle: frozenset[int] = frozenset()
    num_drafts: int = 0
    accepted: tuple[int, ...] = (0,)
    admits: bool = True
    preempts: Choice | None = None
    ends: Choice | None = None

    def __repr__(self) -> str:
        changed = [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if value != getattr(Plan, name)
        ]
        return f"Plan({', '.join(changed)})"
