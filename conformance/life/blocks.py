"""One pool of blocks for all KV cache groups, some of them held by several requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance.life.situations import Event


class SharedBlocks:
    """Blocks with the requests that hold them counted, and full ones found again by their prefix.

    A block that nobody holds is free, and keeps what stands in it until it is handed out again.

    Args:
        num_blocks: Blocks of the pool, with the null block (number 0), which is never handed out.
        block_sizes: Tokens in a block of each KV cache group.
        takes_latest: Whether the block freed last is handed out first, which writes over what was
            just read; otherwise the one freed longest ago, which keeps prefixes for long.

    Attributes:
        events: Hard cases that were met; the caller clears them.

    Example:
        >>> blocks = SharedBlocks(5, (2, 4))
        >>> held = [blocks.take(0, 2), blocks.take(1, 1)]
        >>> held
        [[1, 2], [3]]
        >>> blocks.remember([71, 72, 73, 74, 75], held)  # the prefixes of five tokens
        >>> blocks.find([71, 72, 73, 74, 99], most_tokens=4)
        (4, [[1, 2], [3]])
        >>> blocks.find([71, 72, 98, 99], most_tokens=4)
        (0, [[], []])
        >>> blocks.share(2)
        >>> blocks.give_back([2, 1]), blocks.num_free, blocks.num_holders(2)
        ([1], 2, 1)
    """

    def __init__(
        self, num_blocks: int, block_sizes: tuple[int, ...], *, takes_latest: bool = False
    ) -> None:
        self.events: set[Event] = set()
        self._block_sizes = block_sizes
        self._free = list(range(1, num_blocks))
        self._takes_latest = takes_latest
        self._holders: Counter[int] = Counter()
        self._by_prefix: dict[tuple[int, int], int] = {}
        self._prefix_of: dict[int, tuple[int, int]] = {}
        self._group_of: dict[int, int] = {}
        self._freed_in_step: set[int] = set()

    @property
    def num_free(self) -> int:
        """How many blocks can be taken."""
        return len(self._free)

    @property
    def free(self) -> frozenset[int]:
        """The blocks that nobody holds."""
        return frozenset(self._free)

    def num_holders(self, block_id: int) -> int:
        """Count the requests that hold a block."""
        return self._holders[block_id]

    def end_step(self) -> None:
        """Note that what is freed from now on is freed in another step."""
        self._freed_in_step.clear()

    def take(self, group: int, count: int) -> list[int]:
        """Take free blocks; what stood in them is forgotten.

        Args:
            group: Whose they are to be.
            count: How many, at most `num_free`.

        Returns:
            Their ids.

        Raises:
            ValueError: There are not so many.
        """
        if count > self.num_free:
            raise ValueError(f"count is {count}, but only {self.num_free} blocks are free")
        taken = [self._free.pop(-1 if self._takes_latest else 0) for _ in range(count)]
        for block_id in taken:
            self._note_taken(group, block_id)
            self._forget(block_id)
            self._holders[block_id] = 1
            self._group_of[block_id] = group
        return taken

    def share(self, block_id: int) -> None:
        """Let one more request hold a block, which may be free."""
        if self._holders[block_id]:
            self.events.add(Event.SHARED_WITH_LIVE)
        else:
            self._free.remove(block_id)
            self.events.add(Event.SHARED_WITH_GONE)
        self._holders[block_id] += 1

    def give_back(self, block_ids: Sequence[int]) -> list[int]:
        """Let one request less hold each of some blocks.

        Args:
            block_ids: The blocks.

        Returns:
            Those that are free now.
        """
        freed = []
        for block_id in block_ids:
            self._holders[block_id] -= 1
            if not self._holders[block_id]:
                freed.append(block_id)
        if len(freed) < len(block_ids):
            self.events.add(Event.SHARED_BLOCK_FREED)
        self._freed_in_step.update(freed)
        self._free.extend(freed)
        return freed

    def remember(self, prefixes: Sequence[int], block_ids: Sequence[Sequence[int]]) -> None:
        """Let the full blocks of a request be found by others.

        Args:
            prefixes: What each of its computed tokens ends.
            block_ids: For each group, its blocks; those that these tokens do not fill are not
                remembered.
        """
        for group, size in enumerate(self._block_sizes):
            for column in range(len(prefixes) // size):
                key, block_id = (group, prefixes[(column + 1) * size - 1]), block_ids[group][column]
                if key not in self._by_prefix and block_id not in self._prefix_of:
                    self._by_prefix[key] = block_id
                    self._prefix_of[block_id] = key

    def find(self, prefixes: Sequence[int], most_tokens: int) -> tuple[int, list[list[int]]]:
        """Find the blocks of the longest prefix that is computed, and full blocks in all groups.

        Args:
            prefixes: What each token of a request ends.
            most_tokens: The longest prefix that will do.

        Returns:
            Its length in tokens, and its blocks for each group.
        """
        for num_tokens in range(most_tokens, 0, -1):
            if any(num_tokens % size for size in self._block_sizes):
                continue
            found = [
                [
                    self._by_prefix.get((group, prefixes[stop - 1]))
                    for stop in range(size, num_tokens + 1, size)
                ]
                for group, size in enumerate(self._block_sizes)
            ]
            known = [[block_id for block_id in ids if block_id is not None] for ids in found]
            if known == found:
                return num_tokens, known
        return 0, [[] for _ in self._block_sizes]

    def _forget(self, block_id: int) -> None:
        """Find a block by its prefix no longer: something else will stand in it."""
        if block_id in self._prefix_of:
            del self._by_prefix[self._prefix_of.pop(block_id)]

    def _note_taken(self, group: int, block_id: int) -> None:
        """Note what a block that is handed out was before."""
        if block_id in self._prefix_of:
            self.events.add(Event.PREFIX_FORGOTTEN)
        if block_id in self._freed_in_step:
            self.events.add(Event.FREED_AND_TAKEN)
        if self._group_of.get(block_id, group) != group:
            self.events.add(Event.OTHER_GROUP)
