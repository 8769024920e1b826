"""The setup of the engine of the stateful test: KV cache groups, and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from conformance.engine.settings import EngineSettings
from conformance.targets.target import Target
from conformance.zoo.deployment import Deployment, deploy
from conformance.zoo.groups import CacheGroup, block_bytes
from conformance.zoo.models import CHUNKED_LOCAL, SLIDING_WINDOW, Layer, Model

ANY_BLOCK_SIZE = "ANY_BLOCK_SIZE"
"""The backend whose kernels work on blocks of any size."""
CHUNK_BLOCKS = 2
"""Blocks in a chunk of chunked local attention."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How an engine is set up.

    Attributes:
        block_sizes: Tokens in a block of each KV cache group.
        kinds: The kind of each group's layers.
        num_spare_blocks: Blocks of the pool besides those of one request of maximum length.
        reuses_latest: Whether the block freed last is handed out first.
        max_model_len: The longest sequence, in tokens.
        max_num_seqs: The most requests running at once.
        token_budget: The most tokens of a step.
        num_speculative_tokens: The most draft tokens of a decode.
        micro_batches: Parts that each batch is cut into.
        padding: Batches are padded to multiples of so many requests and tokens.
        is_checked: Whether `fast` runs in checked mode.
        seed: Determines the order of threads if kernels are simulated.

    Example:
        >>> setup = Setup(block_sizes=(2, 3), kinds=("full", "sliding_window"), max_model_len=12)
        >>> [(group.block_size, group.layers[0].head_size) for group in setup.groups]
        [(2, 3), (3, 2)]
        >>> setup.num_blocks, setup.common_block_size
        (15, 6)
        >>> str(Setup()).split(";")[0]
        'an engine with full attention in blocks of 2'
    """

    block_sizes: tuple[int, ...] = (2,)
    kinds: tuple[str, ...] = ("full",)
    num_spare_blocks: int = 4
    reuses_latest: bool = False
    max_model_len: int = 32
    max_num_seqs: int = 4
    token_budget: int = 24
    num_speculative_tokens: int = 0
    micro_batches: int = 2
    padding: int = 1
    is_checked: bool = False
    seed: int = 0

    def __str__(self) -> str:
        groups = " and ".join(
            f"{kind} attention in blocks of {size}"
            for kind, size in zip(self.kinds, self.block_sizes, strict=True)
        )
        facts = {
            "blocks": self.num_blocks - 1,
            "requests at most": self.max_num_seqs,
            "tokens in a step": self.token_budget,
            "drafts": self.num_speculative_tokens,
            "micro-batches": self.micro_batches,
        }
        limits = ", ".join(f"{number} {name}" for name, number in facts.items())
        order = "latest" if self.reuses_latest else "earliest"
        return (
            f"an engine with {groups}; {limits}, padded to multiples of {self.padding}; "
            f"the block freed {order} is taken first"
        )

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The KV cache groups, each of one layer; a block has the same bytes in all."""
        return tuple(
            CacheGroup(kind=kind, layers=(self._layer(number, kind, size),), block_size=size)
            for number, (kind, size) in enumerate(zip(self.kinds, self.block_sizes, strict=True))
        )

    @cached_property
    def settings(self) -> EngineSettings:
        """The settings of its scheduler and runner."""
        return EngineSettings(
            token_budget=self.token_budget,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            num_speculative_tokens=self.num_speculative_tokens,
            micro_batches=self.micro_batches,
            padding=self.padding,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, including the null block."""
        longest = sum(-(-self.max_model_len // size) for size in self.block_sizes)
        return 1 + longest + self.num_spare_blocks

    @property
    def common_block_size(self) -> int:
        """The least number of tokens that fills whole blocks of all groups."""
        return math.lcm(*self.block_sizes)

    def deploy(self, target: Target) -> Deployment:
        """Deploy a model that has these groups, with all blocks of the pool.

        >>> from conformance.targets.target import REFERENCE
        >>> setup = Setup(block_sizes=(2, 4), kinds=("full", "full"), max_model_len=8)
        >>> deployment = setup.deploy(REFERENCE)
        >>> [cache.shape for cache in deployment.kv_caches.values()]
        [(2, 11, 2, 1, 2), (2, 11, 4, 1, 1)]
        """
        model = Model(
            name="of the stateful test",
            layers=tuple(layer for group in self.groups for layer in group.layers),
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.token_budget,
            max_num_seqs=self.max_num_seqs,
            num_speculative_tokens=self.num_speculative_tokens,
        )
        memory_bytes = self.num_blocks * block_bytes(target, self.groups)
        return deploy(target, model, memory_bytes, self.groups)

    def _layer(self, number: int, kind: str, block_size: int) -> Layer:
        """Make the layer of a group."""
        return Layer(
            name=f"model.layers.{number}.self_attn.attn",
            kind=kind,
            backend=ANY_BLOCK_SIZE,
            num_kv_heads=1,
            head_size=self.common_block_size // block_size,
            sliding_window=block_size + 1 if kind == SLIDING_WINDOW else None,
            attention_chunk_size=CHUNK_BLOCKS * block_size if kind == CHUNKED_LOCAL else None,
        )
