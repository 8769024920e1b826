"""The interface of KV cache groups that a scheduler needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class CacheGroup(Protocol):
    """Layers that share a block table."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    def num_blocks(self, num_tokens: int) -> int:
        """Count the blocks of a sequence of so many tokens."""


@dataclass(frozen=True)
class AttentionGroup:
    """Layers whose caches have an entry for each token.

    Attributes:
        block_size: Tokens in a block.

    Example:
        >>> AttentionGroup(16).num_blocks(17)
        2
    """

    block_size: int

    def num_blocks(self, num_tokens: int) -> int:
        """Return the number of blocks of a sequence of so many tokens."""
        return -(-num_tokens // self.block_size)
