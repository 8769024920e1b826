"""The pool of blocks that all KV cache groups share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fast import NULL_BLOCK_ID


class BlockPool:
    """The free blocks, handed out in the order in which they were freed.

    Args:
        num_blocks: Blocks of the pool, with the null block, which is never handed out.

    Example:
        >>> pool = BlockPool(4)
        >>> pool.take(2)
        [1, 2]
        >>> pool.give_back([1])
        >>> pool.take(2), pool.num_free
        ([3, 1], 0)
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(NULL_BLOCK_ID + 1, num_blocks))

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take free blocks.

        Args:
            count: How many; no more than are free.
        """
        return [self._free.popleft() for _ in range(count)]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Free blocks.

        Args:
            block_ids: Blocks that were taken.
        """
        self._free.extend(block_ids)
