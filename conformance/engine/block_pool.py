"""The pool of blocks that all KV cache groups of an engine share; requests share full blocks."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from conformance.engine.request import Request

BlockKey: TypeAlias = tuple[int, tuple[int, ...]]
"""The content of a full block: its KV cache group, and all tokens of the sequence up to its end."""

NULL_BLOCK = 0
"""It is never handed out."""


class BlockPool:
    """The free blocks, and the reference counts of the others.

    A full block can be cached under a key. It is found by that key until it is handed out again,
    even after it was freed.

    Args:
        num_blocks: Blocks of the pool, including the null block, which is never handed out.
        reuses_latest: Whether the block freed last is handed out first, so that ids are soon
            scattered. Otherwise it is the one freed longest ago, so that cached blocks last.

    Example:
        >>> pool = BlockPool(5)
        >>> pool.get_new_blocks(3), pool.num_free_blocks
        ([1, 2, 3], 1)
        >>> pool.free_blocks([1, 2])  # a request's last block is reused first
        >>> pool.get_new_blocks(3)
        [4, 2, 1]
        >>> pool = BlockPool(5, reuses_latest=True)
        >>> pool.free_blocks(pool.get_new_blocks(2))
        >>> pool.get_new_blocks(3)
        [2, 1, 3]
    """

    def __init__(self, num_blocks: int, *, reuses_latest: bool = False) -> None:
        self._reuses_latest = reuses_latest
        self._unused = range(1, max(num_blocks, 1))  # no list: a pool may be huge
        self._freed: OrderedDict[int, None] = OrderedDict()
        self._ref_counts: Counter[int] = Counter()
        self._cached_blocks: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._unused) + len(self._freed)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def get_new_blocks(self, count: int) -> list[int]:
        """Hand out free blocks, and return their ids. Their cached content is no longer found."""
        if count > self.num_free_blocks:
            raise ValueError(f"count is {count}, but only {self.num_free_blocks} blocks are free")
        return [self._get_new_block() for _ in range(count)]

    def touch(self, block_id: int) -> None:
        """Add a reference to a cached block, which may be free."""
        if not self._ref_counts[block_id]:
            del self._freed[block_id]
        self._ref_counts[block_id] += 1

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Remove a request's references to its blocks, given in order.

        The last ones are handed out first, since fewer sequences begin with them.
        """
        for block_id in block_ids if self._reuses_latest else reversed(block_ids):
            self._ref_counts[block_id] -= 1
            if not self._ref_counts[block_id]:
                self._freed[block_id] = None

    def cache_block(self, key: BlockKey, block_id: int) -> None:
        """Cache a full block under a key, unless it or one with the same content is cached."""
        if key not in self._cached_blocks and block_id not in self._key_of:
            self._cached_blocks[key] = block_id
            self._key_of[block_id] = key

    def get_cached_block(self, key: BlockKey) -> int | None:
        return self._cached_blocks.get(key)

    def _get_new_block(self) -> int:
        if self._freed and (self._reuses_latest or not self._unused):
            block_id, _ = self._freed.popitem(last=self._reuses_latest)
        else:
            block_id, self._unused = self._unused[0], self._unused[1:]
        self._evict(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def _evict(self, block_id: int) -> None:
        """Remove a block from the cache, since its content will be overwritten."""
        if block_id in self._key_of:
            del self._cached_blocks[self._key_of.pop(block_id)]


class PrefixCache:
    """Finds computed blocks by the tokens of a sequence up to their end.

    Example:
        >>> pool = BlockPool(9)
        >>> cache = PrefixCache(pool, [2, 4], lambda num_computed_tokens: [0, 0])
        >>> request = Request("a", [5, 6, 7, 8, 9], 1, num_computed_tokens=5)
        >>> request.block_ids = pool.get_new_blocks(3), pool.get_new_blocks(2)
        >>> cache.cache_full_blocks(request)
        >>> cache.find_longest_prefix(Request("b", [5, 6, 7, 8, 1], 1))
        (4, ([1, 2], [4]))
        >>> cache.find_longest_prefix(Request("b", [5, 6, 7, 8], 1))  # one token is computed
        (0, ([], []))
    """

    def __init__(
        self,
        pool: BlockPool,
        block_sizes: Sequence[int],
        # Counts the blocks before a window, for each group, for a number of computed tokens.
        num_skipped_of: Callable[[int], Sequence[int]],
    ) -> None:
        self._pool = pool
        self._block_sizes = block_sizes
        self._num_skipped_of = num_skipped_of

    def cache_full_blocks(self, request: Request) -> None:
        """Let other requests find the blocks that a request's computed tokens fill."""
        for group, size in enumerate(self._block_sizes):
            for column in range(request.num_computed_tokens // size):
                prefix = tuple(request.token_ids[: (column + 1) * size])
                if request.block_ids[group][column] != NULL_BLOCK:
                    self._pool.cache_block((group, prefix), request.block_ids[group][column])

    def find_longest_prefix(self, request: Request) -> tuple[int, tuple[list[int], ...]]:
        """Return the longest computed prefix of a request that fills blocks of all groups.

        It is returned as its length in tokens, and its blocks for each group, the null block in
        place of those before the window. At least one token is left to compute, since the logits of
        the last one are needed.
        """
        common = math.lcm(*self._block_sizes)
        for num_tokens in range((request.num_tokens - 1) // common * common, 0, -common):
            found = [
                [
                    NULL_BLOCK
                    if end <= skipped * size
                    else self._pool.get_cached_block((group, tuple(request.token_ids[:end])))
                    for end in range(size, num_tokens + 1, size)
                ]
                for group, (size, skipped) in enumerate(
                    zip(self._block_sizes, self._num_skipped_of(num_tokens), strict=True)
                )
            ]
            known = [[b for b in block_ids if b is not None] for block_ids in found]
            if known == found:
                return num_tokens, tuple(known)
        return 0, tuple([] for _ in self._block_sizes)
