"""A pool of blocks that records which coverage goals it meets."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.engine.block_pool import BlockPool
from conformance.stateful.goals import Goal


class RecordedPool(BlockPool):
    """A `BlockPool` that records what happens to blocks.

    Args:
        num_blocks: As of `BlockPool`.
        reuses_latest: As of `BlockPool`.

    Attributes:
        goals: The goals that were reached; the caller clears them.
        freed_in_step: Blocks that were freed in this step; the caller clears them.
    """

    def __init__(self, num_blocks: int, *, reuses_latest: bool) -> None:
        super().__init__(num_blocks, reuses_latest=reuses_latest)
        self.goals: set[Goal] = set()
        self.freed_in_step: set[int] = set()

    def touch(self, block_id: int) -> None:
        """Let one more request hold a block."""
        is_live = self.ref_count(block_id) > 0
        self.goals.add(Goal.SHARED_WITH_LIVE if is_live else Goal.SHARED_WITH_GONE)
        super().touch(block_id)

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Let one request less hold each of some blocks."""
        super().free_blocks(block_ids)
        freed = {block_id for block_id in block_ids if not self.ref_count(block_id)}
        self.freed_in_step |= freed
        if len(freed) < len(block_ids):
            self.goals.add(Goal.SHARED_BLOCK_FREED)

    def _evict(self, block_id: int) -> None:
        """Remove a block from the cache."""
        if block_id in self._key_of:
            self.goals.add(Goal.PREFIX_FORGOTTEN)
        if block_id in self.freed_in_step:
            self.goals.add(Goal.FREED_AND_TAKEN)
        super()._evict(block_id)
