"""A step's batch: its requests in the worker's order, padded, and the buffers that hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from conformance.engine.settings import EngineSettings

Int32: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

PADDED_REQUEST = -1
"""The entry of `idx_mapping` of a request that is padding."""


@dataclass(frozen=True, kw_only=True)
class PaddedBatch:
    """A batch of one step, in the order in which it is computed, padded for a CUDA graph.

    Attributes:
        req_ids: The requests, in batch order.
        query_lens: int32[num_reqs], their new tokens.
        num_padded_reqs: Requests, including padding.
        num_padded_tokens: Tokens, including padding.
    """

    req_ids: list[str]
    query_lens: Int32
    num_padded_reqs: int
    num_padded_tokens: int

    @property
    def num_reqs(self) -> int:
        """Requests without padding."""
        return len(self.req_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.query_lens.sum())


class BatchBuffers:
    """The persistent buffers that every step's batch is written into.

    They keep their addresses from step to step, as a captured CUDA graph requires.

    Args:
        settings: The settings of the engine.
        make: Makes a `CpuGpuBuffer` from its number of elements and the name of its dtype.

    Attributes:
        max_num_reqs: The most requests of a batch, including padding.
        max_num_tokens: The most tokens of a batch, including padding.
        idx_mapping: int32[max_num_reqs], the row of each request in the block tables.
        query_start_loc: int32[max_num_reqs + 1], each request's first token, then their number.
        seq_lens: int32[max_num_reqs], computed and new tokens of each request.
        num_computed_tokens: int32[max_num_reqs], computed tokens of each request.
        positions: int64[max_num_tokens], the position of each token in its sequence.
        logits_indices: int64[max_num_reqs], the last token of each request.
    """

    def __init__(self, settings: EngineSettings, make: Callable[[int, str], Any]) -> None:
        self.max_num_reqs = settings.padded(settings.max_num_seqs)
        self.max_num_tokens = settings.padded(settings.token_budget)
        self.idx_mapping = make(self.max_num_reqs, "int32")
        self.query_start_loc = make(self.max_num_reqs + 1, "int32")
        self.seq_lens = make(self.max_num_reqs, "int32")
        self.num_computed_tokens = make(self.max_num_reqs, "int32")
        self.positions = make(self.max_num_tokens, "int64")
        self.logits_indices = make(self.max_num_reqs, "int64")

    def fill(
        self, rows: Sequence[int], query_lens: Int32, computed: Int32, num_padded_reqs: int
    ) -> None:
        """Write a batch into the host halves; positions of padding stay unchanged.

        Args:
            rows: The row of each request in the block tables, in batch order.
            query_lens: int32[num_reqs], new tokens.
            computed: int32[num_reqs], tokens in the cache.
            num_padded_reqs: Requests, including padding.
        """
        num_reqs = len(rows)
        starts = self.query_start_loc.np
        starts[0] = 0
        np.cumsum(query_lens, out=starts[1 : num_reqs + 1])
        starts[num_reqs + 1 : num_padded_reqs + 1] = starts[num_reqs]
        self.idx_mapping.np[:num_reqs] = rows
        self.num_computed_tokens.np[:num_reqs] = computed
        self.seq_lens.np[:num_reqs] = computed + query_lens
        self.logits_indices.np[:num_reqs] = starts[1 : num_reqs + 1] - 1
        self.idx_mapping.np[num_reqs:num_padded_reqs] = PADDED_REQUEST
        for buffer in (self.num_computed_tokens, self.seq_lens, self.logits_indices):
            buffer.np[num_reqs:num_padded_reqs] = 0
        for start, length, first in zip(starts[:num_reqs], query_lens, computed, strict=True):
            self.positions.np[start : start + length] = np.arange(first, first + length)
