"""A step of the stateful test, with the scheduler's state that checks of a runner need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from conformance.engine.scheduler_output import SchedulerOutput


@dataclass(frozen=True)
class RequestSnapshot:
    """A request at the time of a step.

    Attributes:
        request_id: Its name.
        start: The number of its tokens in the cache before the step.
        stop: The same after the step, drafts included; `start` if it has no tokens in the step.
        prefixes: For each token up to `stop`, the number of the prefix that it ends.
        block_ids: For each KV cache group, its blocks.
        num_drafts: How many of the last tokens are drafts.
        num_cached_tokens: How many of the first ones were in the cache when it was admitted.

    Example:
        >>> str(RequestSnapshot("request-0", 4, 6, (1, 2, 3, 4, 5, 6), ((7, 2), (3,)), 1, 4))
        'request-0 computes 4..5 (1 drafts) in the blocks [7 2] and [3], the first 4 shared'
    """

    request_id: str
    start: int
    stop: int
    prefixes: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    num_drafts: int = 0
    num_cached_tokens: int = 0

    def __str__(self) -> str:
        blocks = " and ".join(listed(ids) for ids in self.block_ids)
        drafts = f" ({self.num_drafts} drafts)" if self.num_drafts else ""
        shared = f", the first {self.num_cached_tokens} shared" if self.num_cached_tokens else ""
        positions = f"{self.start}..{self.stop - 1}{drafts}"
        return f"{self.request_id} computes {positions} in the blocks {blocks}{shared}"


@dataclass(frozen=True)
class Snapshot:
    """A step, and the scheduler's state while the step runs.

    Attributes:
        step: The step that runners execute.
        requests: The requests of the step, by name.
        others: Requests that hold blocks, but have no tokens in the step.
        free_block_ids: The blocks that no request holds.
    """

    step: SchedulerOutput
    requests: dict[str, RequestSnapshot]
    others: tuple[RequestSnapshot, ...]
    free_block_ids: frozenset[int]


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as text.

    >>> listed([3, 4])
    '[3 4]'
    """
    return f"[{' '.join(map(str, numbers))}]"
