"""The pool of blocks that all KV cache groups of an engine share."""

from collections.abc import Iterable


class BlockPool:
    """The free blocks, last freed, first handed out: ids come out scattered after a while.

    Args:
        num_blocks: Blocks of the pool, with the null block (number 0), which is never handed out.

    Example:
        >>> pool = BlockPool(5)
        >>> pool.take(3), pool.num_free
        ([1, 2, 3], 1)
        >>> pool.give_back([1, 2])
        >>> pool.take(3)
        [2, 1, 4]
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take free blocks out of the pool.

        Args:
            count: How many.

        Returns:
            Their ids.

        Raises:
            ValueError: There are not so many.
        """
        if count > len(self._free):
            raise ValueError(f"count is {count}, but only {len(self._free)} blocks are free")
        return [self._free.pop() for _ in range(count)]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Put blocks back.

        Args:
            block_ids: Blocks that were taken.
        """
        self._free.extend(block_ids)
