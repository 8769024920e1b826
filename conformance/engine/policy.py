"""What may be decided differently from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.engine.settings import NO_LIMIT


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a step is scheduled. The default is first come, first served, within the settings.

    Attributes:
        token_budget: The most tokens of the step.
        max_tokens_per_request: The most tokens of one request.
        skipped: Positions among the running requests of those that sit the step out.
        admits: Whether waiting requests are admitted.
        admits_after_preemption: Whether they are admitted in a step that preempts. What was
            preempted is first in the queue, so it would be resumed at once.
    """

    token_budget: int = NO_LIMIT
    max_tokens_per_request: int = NO_LIMIT
    skipped: frozenset[int] = frozenset()
    admits: bool = True
    admits_after_preemption: bool = False


FIRST_COME_FIRST_SERVED = Policy()
