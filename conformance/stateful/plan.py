"""What the state machine decides of a step before it knows the scheduler's state."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.engine.request import Request
from conformance.engine.settings import Policy


class Preference(enum.Enum):
    """Which running request is chosen, if there is one like that: most would rarely be met."""

    ANY = "any"
    WITH_REJECTED_DRAFTS = "with rejected drafts"
    IN_PREFILL = "in mid-prefill"
    SHARING = "that shares blocks"


@dataclass(frozen=True)
class Choice:
    """A running request, chosen before it is known which there are.

    Attributes:
        preference: What it is like, if one is like that.
        index: Its number among these.
    """

    preference: Preference
    index: int

    def pick(self, running: Sequence[Request], shares: Callable[[Request], bool]) -> Request:
        """Return the chosen one of the running requests, of which there is at least one."""
        is_preferred = {
            Preference.ANY: lambda _: True,
            Preference.WITH_REJECTED_DRAFTS: lambda request: request.num_rejected_tokens > 0,
            Preference.IN_PREFILL: lambda request: request.is_in_prefill,
            Preference.SHARING: shares,
        }[self.preference]
        preferred = [request for request in running if is_preferred(request)] or running
        return preferred[self.index % len(preferred)]


@dataclass(frozen=True, kw_only=True)
class Plan(Policy):
    """How a step is scheduled, and what comes of it.

    Attributes:
        preempts: Who is preempted before anything else is decided.
        finishes: Who ends before that, without all its tokens.
        accepted: How many drafts are accepted, of the decodes by turns.
        num_drafts: Draft tokens for the next step of each decode, as far as the engine has them.
    """

    admits_after_preemption: bool = True
    preempts: Choice | None = None
    finishes: Choice | None = None
    accepted: tuple[int, ...] = (0,)
    num_drafts: int = 0

    def __repr__(self) -> str:
        changed = [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if value != getattr(Plan, name)
        ]
        return f"Plan({', '.join(changed)})"
