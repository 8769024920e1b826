"""The sizes of an engine's steps and blocks: small, so that every edge is near."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import AttentionGroup
from conformance.engine.scheduler import Scheduler
from conformance.engine.settings import EngineSettings

MODEL_NAMES = ("llama", "gemma", "gemma-shared", "llama-chunked")
"""The models that there are; `models` makes them."""

VOCAB_SIZE = 512
SLIDING_WINDOW = 24
"""Keys that a query sees in sliding-window layers: a window begins inside a block."""

ATTENTION_CHUNK_SIZE = 32
LONGEST_PROMPT = 200
MAX_NEW_TOKENS = 24


@dataclass(frozen=True, kw_only=True)
class Settings(EngineSettings):
    """The settings of an engine.

    Attributes:
        block_size: Tokens in a block of the scheduler's pool; a backend's kernels may work on
            smaller ones.
        requests_in_pool: How many of the longest sequences the pool of blocks holds. It is small,
            so that blocks run out.
    """

    max_num_seqs: int = 10
    token_budget: int = 64
    max_model_len: int = LONGEST_PROMPT + MAX_NEW_TOKENS
    block_size: int = 16
    requests_in_pool: int = 2
    padding: int = 4

    def pool_blocks(self, num_groups: int) -> int:
        """Count the blocks of the pool, including the null block (number 0).

        Args:
            num_groups: KV cache groups, each of which takes blocks for every request.
        """
        num_blocks = AttentionGroup(self.block_size).num_blocks(self.max_model_len)
        return 1 + self.requests_in_pool * num_groups * num_blocks

    def make_scheduler(self, num_groups: int) -> Scheduler:
        """Make the scheduler, first come, first served.

        Args:
            num_groups: KV cache groups, each of which takes blocks for every request.
        """
        groups = [AttentionGroup(self.block_size)] * num_groups
        return Scheduler(self, groups, BlockPool(self.pool_blocks(num_groups)))
