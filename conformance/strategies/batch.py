"""A drawn step: its requests and tokens, and the layout of positions in blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import accumulate, chain, takewhile
from typing import Any

import numpy as np

import reference
from conformance.arrays.guard_bands import Array, guarded, guarded_table


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a request's positions in blocks.

    Attributes:
        block_size: Tokens in a block, on one rank.
        kernel_block_size: Tokens in a block of the table, if kernel blocks split the manager's.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: This rank.
        cp_kv_cache_interleave_size: Consecutive tokens on one rank.
    """

    block_size: int
    kernel_block_size: int | None = None
    cp_world_size: int = 1
    cp_rank: int = 0
    cp_kv_cache_interleave_size: int = 1

    @property
    def blocks_per_kv_block(self) -> int:
        """Return how many of the table's blocks make one of the manager's."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    def num_blocks(self, seq_len: int) -> int:
        """Return the number of manager blocks for this rank's part of a sequence."""
        return -(-seq_len // (self.block_size * self.cp_world_size))

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of the functions that read a layout."""
        return {name: value for name, value in vars(self).items() if name != "block_size"}


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step, in batch order, padding requests included.

    Attributes:
        query_lens: New tokens of each request.
        num_computed_tokens: Tokens of each request in the cache before the step.
        layout: The layout of positions in blocks.
        rows: The blocks of the table that each request owns.
        num_padding_tokens: Tokens past the last request's, added for a CUDA graph.
        extra_columns: Columns of the table that no request needs.
        extra_rows: Rows of the table past the last request's.
        filler: The value of table entries and positions that must not be read.
        stride: The step between elements in memory; more than 1 makes every array a strided view.
        raised: How far `max_query_len` and `max_seq_len` lie above the true maxima.
        causal: Whether attention is causal.
        drift: How far `num_computed_tokens_cpu` is below the tokens before the query, as after fast
            prefill; for a request without a query, how far above, as left by an earlier step.
        extra_slots: Slots past the last token, which must not be read.
        has_numpy_ints: Whether counts are NumPy ints, as arithmetic on arrays gives them, and
            `causal` NumPy's bool.
    """

    query_lens: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]
    layout: Layout
    rows: tuple[tuple[int, ...], ...]
    num_padding_tokens: int = 0
    extra_columns: int = 0
    extra_rows: int = 0
    filler: int = 0
    stride: int = 1
    raised: int = 0
    causal: bool = True
    drift: int = 0
    extra_slots: int = 0
    has_numpy_ints: bool = False

    @property
    def num_reqs(self) -> int:
        """Return the number of requests, padding included."""
        return len(self.query_lens)

    @property
    def num_padded_reqs(self) -> int:
        """Return the number of requests at the end that have no tokens."""
        return sum(1 for _ in takewhile(lambda query_len: not query_len, reversed(self.query_lens)))

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Return each request's sequence length."""
        return tuple(c + q for c, q in zip(self.num_computed_tokens, self.query_lens, strict=True))

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the query starts, `num_reqs + 1` of them."""
        return (0, *accumulate(self.query_lens))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens that belong to requests."""
        return sum(self.query_lens)

    @property
    def num_actual_tokens(self) -> int:
        """Return the number of tokens in the batch, padding included."""
        return self.num_tokens + self.num_padding_tokens

    def query_start_loc(self) -> Array:
        """Return the query starts as an array."""
        return guarded(self.starts, np.int32, self.stride)

    def positions(self) -> Array:
        """Return every token's position, with the filler for padding."""
        found = chain.from_iterable(map(range, self.num_computed_tokens, self.seq_lens))
        padding = [self.filler] * self.num_padding_tokens
        return guarded([*found, *padding], np.int64, self.stride)

    def block_table(self) -> Array:
        """Return the block table, with the filler past each row's end."""
        width = max(map(len, self.rows), default=0) + self.extra_columns
        num_rows = self.num_reqs + self.extra_rows
        return guarded_table(self.rows, num_rows, width, self.filler, self.stride)

    def slot_mapping(self) -> Array:
        """Return every token's slot in the cache, -1 for padding, and 7 for the extra slots."""
        padding = [reference.PAD_SLOT_ID] * self.num_padding_tokens
        found = [*self._slots(), *padding, *[7] * self.extra_slots]
        return guarded(found, np.int64, self.stride)

    def _slots(self) -> Iterator[int]:
        """Yield what `reference.compute_slot_mapping` returns for the tokens of requests.

        Calling it took a third of the time in which batches of all sizes were drawn and checked.
        This takes 26 ms for 65,537 tokens, not 58.
        """
        layout = self.layout
        num_ranks, interleave = layout.cp_world_size, layout.cp_kv_cache_interleave_size
        pieces, block_size = layout.blocks_per_kv_block, layout.block_size * num_ranks
        kernel_block_size = layout.kernel_block_size or layout.block_size
        for row, computed, seq_len in zip(
            self.rows, self.num_computed_tokens, self.seq_lens, strict=True
        ):
            for position in range(computed, seq_len):
                block, in_block = divmod(position, block_size)
                turn, in_turn = divmod(in_block, interleave)
                in_rank, rank = divmod(turn, num_ranks)
                if rank != layout.cp_rank:
                    yield reference.PAD_SLOT_ID
                    continue
                column, offset = divmod(in_rank * interleave + in_turn, kernel_block_size)
                yield row[block * pieces + column] * kernel_block_size + offset

    def reported_computed_tokens(self, *, is_whole: bool = False) -> list[int]:
        """Return the entry of each request in `num_computed_tokens_cpu`.

        If the batch is a whole step, `drift` is of requests without a query only.
        """
        pairs = zip(self.num_computed_tokens, self.query_lens, strict=True)
        drift = 0 if is_whole else self.drift
        return [max(c - drift, 0) if q else c + self.drift for c, q in pairs]

    def metadata(self) -> reference.CommonAttentionMetadata:
        """Return the batch's attention metadata for `reference`."""
        starts = self.query_start_loc()
        number: Callable[[int], Any] = np.int32 if self.has_numpy_ints else int
        boolean: Callable[[bool], Any] = np.bool_ if self.has_numpy_ints else bool
        seq_lens = guarded(self.seq_lens, np.int32, self.stride)
        return reference.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            num_computed_tokens_cpu=guarded(self.reported_computed_tokens(), np.int32, self.stride),
            num_reqs=number(self.num_reqs),
            num_actual_tokens=number(self.num_actual_tokens),
            max_query_len=number(max(self.query_lens, default=0) + self.raised),
            max_seq_len=number(max(self.seq_lens, default=0) + self.raised),
            block_table_tensor=self.block_table(),
            slot_mapping=self.slot_mapping(),
            causal=boolean(self.causal),
        )


def is_padded(batch: Batch) -> bool:
    """Return whether the last request is padding."""
    return bool(batch.query_lens) and batch.query_lens[-1] == 0
