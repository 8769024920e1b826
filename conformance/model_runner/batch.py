"""The batch of one step, from which a runner derives further results."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.engine.padded_batch import PaddedBatch
from conformance.engine.settings import EngineSettings
from conformance.targets.target import Answer
from conformance.zoo.groups import CacheGroup

GROUPS_PER_STEP = 2
"""Groups to process in each step, so that `reference` is quick."""


@dataclass(frozen=True, kw_only=True)
class Batch(PaddedBatch):
    """A batch of one step, in the order in which it is computed.

    Attributes:
        step_index: The step's number.
        settings: The settings of the engine.
        groups: The KV cache groups that take blocks.
        positions: int64[num_padded_tokens], an array or tensor, as in `metadata`.
        metadata: The `CommonAttentionMetadata` of each group, padding included.
        config: The `VllmConfig` of the engine.
        fast_prefill: For each group, an `AttentionGroup` of layers that compute only the tokens
            with logits.
    """

    step_index: int
    settings: EngineSettings
    groups: tuple[CacheGroup, ...]
    positions: Answer
    metadata: list[Answer]
    config: Answer
    fast_prefill: list[Answer]

    @property
    def num_decodes(self) -> int:
        """The number of decodes, which come first in the batch."""
        return int((self.query_lens <= self.settings.decode_threshold).sum())

    @property
    def uniform_decodes(self) -> tuple[int, int]:
        """The leading decodes that have the same length: their number, and this length."""
        query_lens = self.query_lens[: self.num_decodes].tolist()
        for number, query_len in enumerate(query_lens):
            if query_len != query_lens[0]:
                return number, query_lens[0]
        return len(query_lens), query_lens[0] if query_lens else 0

    @property
    def rotating_group(self) -> int:
        """The index of the group for work that is done for one group in each step."""
        return self.step_index % len(self.groups)

    @property
    def rotating_groups(self) -> list[tuple[CacheGroup, Answer]]:
        """The groups for work that is done for a few groups in each step, with their metadata."""
        pairs = list(zip(self.groups, self.metadata, strict=True))
        first = self.rotating_group
        return [*pairs[first:], *pairs[:first]][:GROUPS_PER_STEP]

    def interleave(self, group: CacheGroup) -> int:
        """Return the context-parallel interleave of a step: a token, a block or half a block."""
        return (1, group.block_size, max(group.block_size // 2, 1))[self.step_index % 3]

    @property
    def longest_request(self) -> tuple[int, int, int]:
        """The index of the request with the most new tokens, and where these start and stop."""
        request = int(self.query_lens.argmax())
        start = int(self.query_lens[:request].sum())
        return request, start, start + int(self.query_lens[request])

    @property
    def padded_req_ids(self) -> list[str | None]:
        """The request of each row; None for padding."""
        return [*self.req_ids, *[None] * (self.num_padded_reqs - self.num_reqs)]

    @property
    def token_req_ids(self) -> list[str | None]:
        """The request of each token; None for padding."""
        owners: list[str | None] = []
        for req_id, query_len in zip(self.req_ids, self.query_lens, strict=True):
            owners.extend([req_id] * int(query_len))
        return [*owners, *[None] * (self.num_padded_tokens - self.num_tokens)]
