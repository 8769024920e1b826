"""A step of a life, with all that must be known to judge what a runner makes of it."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.traffic.scheduler import Step


@dataclass(frozen=True)
class Turn:
    """A request at the time of a step.

    Attributes:
        request_id: Its name.
        start: Its tokens in the cache before the step.
        stop: With those of the step, drafts among them; `start` where it has none in the step.
        prefixes: Of each token up to `stop`, the prefix that it ends.
        block_ids: For each KV cache group, its blocks.
        num_drafts: How many of the last tokens are drafts.
        num_shared_tokens: How many of the first ones stand in blocks that it was given with them.

    Example:
        >>> Turn("request-0", 4, 6, (1, 2, 3, 4, 5, 6), ((7, 2), (3,)), 1, 4).told
        'request-0 computes 4..5 (1 drafts) in the blocks [7 2] and [3], the first 4 shared'
    """

    request_id: str
    start: int
    stop: int
    prefixes: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    num_drafts: int = 0
    num_shared_tokens: int = 0

    @property
    def told(self) -> str:
        """What it does in the step, in words."""
        blocks = " and ".join(listed(ids) for ids in self.block_ids)
        drafts = f" ({self.num_drafts} drafts)" if self.num_drafts else ""
        shared = f", the first {self.num_shared_tokens} shared" if self.num_shared_tokens else ""
        positions = f"{self.start}..{self.stop - 1}{drafts}"
        return f"{self.request_id} computes {positions} in the blocks {blocks}{shared}"


@dataclass(frozen=True)
class Scene:
    """A step, and the engine as it is while the step runs.

    Attributes:
        step: What a runner is told.
        turns: The requests of the step, by name.
        others: Requests that hold blocks, but have no tokens in the step.
        free: The blocks that nobody holds.
    """

    step: Step
    turns: dict[str, Turn]
    others: tuple[Turn, ...]
    free: frozenset[int]


def listed(numbers: list[int] | tuple[int, ...]) -> str:
    """Write numbers down.

    Args:
        numbers: The numbers.

    Example:
        >>> listed([3, 4])
        '[3 4]'
    """
    return f"[{' '.join(map(str, numbers))}]"
