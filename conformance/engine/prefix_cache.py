"""Prefix caching: requests share the full blocks of a common prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import CacheGroup
from conformance.engine.request import Request


class PrefixCache:
    """Finds computed blocks by the tokens of a sequence up to their end.

    Args:
        pool: The blocks.
        groups: The KV cache groups that take them.

    Example:
        >>> from conformance.engine.cache_group import AttentionGroup
        >>> pool = BlockPool(9)
        >>> cache = PrefixCache(pool, [AttentionGroup(2), AttentionGroup(4)])
        >>> request = Request("a", [5, 6, 7, 8, 9], 1, num_computed_tokens=5)
        >>> request.block_ids = pool.get_new_blocks(3), pool.get_new_blocks(2)
        >>> cache.cache_full_blocks(request)
        >>> cache.find_longest_prefix(Request("b", [5, 6, 7, 8, 1], 1))
        (4, ([1, 2], [4]))
        >>> cache.find_longest_prefix(Request("b", [5, 6, 7, 8], 1))  # one token is computed
        (0, ([], []))
    """

    def __init__(self, pool: BlockPool, groups: Sequence[CacheGroup]) -> None:
        self._pool = pool
        self._block_sizes = [group.block_size for group in groups]

    def cache_full_blocks(self, request: Request) -> None:
        """Let other requests find the blocks that a request's computed tokens fill."""
        for group, size in enumerate(self._block_sizes):
            for column in range(request.num_computed_tokens // size):
                prefix = tuple(request.token_ids[: (column + 1) * size])
                self._pool.cache_block((group, prefix), request.block_ids[group][column])

    def find_longest_prefix(self, request: Request) -> tuple[int, tuple[list[int], ...]]:
        """Return the longest computed prefix of a request that fills blocks of all groups.

        It is returned as its length in tokens, and its blocks for each group. At least one token is
        left to compute, since the logits of the last one are needed.
        """
        common = math.lcm(*self._block_sizes)
        for num_tokens in range((request.num_tokens - 1) // common * common, 0, -common):
            found = [
                [
                    self._pool.get_cached_block((group, tuple(request.token_ids[:end])))
                    for end in range(size, num_tokens + 1, size)
                ]
                for group, size in enumerate(self._block_sizes)
            ]
            known = [[b for b in block_ids if b is not None] for block_ids in found]
            if known == found:
                return num_tokens, tuple(known)
        return 0, tuple([] for _ in self._block_sizes)
