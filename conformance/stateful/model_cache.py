"""A model of a KV cache: the key in each slot, as a runner's steps wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """The key of a token, and the request and step that wrote it.

    Attributes:
        prefix: The number of the prefix that the token ends, which determines the key.
        position: The token's position in its sequence.
        request_id: The request that wrote it.
        step: The step that wrote it.
    """

    prefix: int
    position: int
    request_id: str
    step: int

    def __str__(self) -> str:
        return (
            f"the key of position {self.position} of {self.request_id}, written in step {self.step}"
        )


class ModelCache:
    """A model of a cache whose blocks are used by several KV cache groups: it records the keys.

    A block has the same bytes for all groups, so a write by one group destroys the keys of another.

    Args:
        block_sizes: Tokens in a block of each group.

    Example:
        >>> model = ModelCache((2, 4))
        >>> model.write(0, 6, Key(9, 0, "request-0", 0))
        >>> model.read(0, 6).prefix, model.read(0, 7), model.read(1, 12)
        (9, None, None)
        >>> model.write(1, 12, Key(9, 0, "request-1", 1))  # block 3, which is slots 12..15 here
        >>> model.read(0, 6) is None
        True
    """

    def __init__(self, block_sizes: tuple[int, ...]) -> None:
        self._block_sizes = block_sizes
        self._blocks: dict[int, tuple[int, dict[int, Key]]] = {}

    def write(self, group: int, slot: int, key: Key) -> None:
        """Put a key into a slot of a group."""
        block_id = slot // self._block_sizes[group]
        owner, keys = self._blocks.get(block_id, (group, {}))
        if owner != group:
            keys = {}
        keys[slot] = key
        self._blocks[block_id] = group, keys

    def read(self, group: int, slot: int) -> Key | None:
        """Return the key in a slot of a group; None if no step of the group wrote one."""
        owner, keys = self._blocks.get(slot // self._block_sizes[group], (group, {}))
        return keys.get(slot) if owner == group else None

    def owner(self, group: int, slot: int) -> int | None:
        """Return the group that wrote to the block of a slot last; None if none did."""
        found = self._blocks.get(slot // self._block_sizes[group])
        return None if found is None else found[0]
