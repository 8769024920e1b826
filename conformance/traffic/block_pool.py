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
        self._given_back: list[int] = []
        self._never_taken = iter(range(1, num_blocks))  # no list: a pool may be huge
        self._num_free = max(num_blocks - 1, 0)

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return self._num_free

    def take(self, count: int) -> list[int]:
        """Take free blocks out of the pool.

        Args:
            count: How many.

        Returns:
            Their ids.

        Raises:
            ValueError: There are not so many.
        """
        if count > self._num_free:
            raise ValueError(f"count is {count}, but only {self._num_free} blocks are free")
        self._num_free -= count
        return [
            self._given_back.pop() if self._given_back else next(self._never_taken)
            for _ in range(count)
        ]

    def give_back(self, block_ids: Iterable[int]) -> None:
        """Put blocks back.

        Args:
            block_ids: Blocks that were taken.
        """
        before = len(self._given_back)
        self._given_back.extend(block_ids)
        self._num_free += len(self._given_back) - before
