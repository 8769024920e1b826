"""The plan of a step, which is drawn before the scheduler's state is known."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.engine.request import Request
from conformance.engine.settings import Policy


class Preference(enum.Enum):
    """The kind of running request to choose, if there is one: most kinds are rare."""

    ANY = "any"
    WITH_REJECTED_DRAFTS = "with rejected drafts"
    IN_PREFILL = "in mid-prefill"
    SHARING = "that shares blocks"


@dataclass(frozen=True)
class Choice:
    """A choice of a running request, drawn before it is known which there are.

    Attributes:
        preference: The kind of request, if there is one of that kind; otherwise any.
        index: Its number among these, modulo how many there are.
    """

    preference: Preference
    index: int

    def pick(self, running: Sequence[Request], shares: Callable[[Request], bool]) -> Request:
        """Return the chosen one of the running requests; there must be at least one."""
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
    """How a step is scheduled, and the outcome of its drafts.

    Attributes:
        preempts: The request to preempt before the step is scheduled.
        finishes: The request to finish before that, without all its tokens.
        accepted: The most drafts that each decode accepts, by turns.
        num_drafts: Draft tokens of each decode in the next step, up to the engine's limit.
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
