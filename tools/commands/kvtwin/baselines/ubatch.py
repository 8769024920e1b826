"""Micro-batches: a batch split by tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from fast import CommonAttentionMetadata, UBatchSlice


def create_ubatch_slices(
    num_scheduled_tokens: np.ndarray[Any, Any], split_points: int | list[int]
) -> list[UBatchSlice]:
    """Cut a batch into micro-batches; arguments are those of `reference`."""
    points = split_points if isinstance(split_points, list) else [split_points]
    ends = np.cumsum(num_scheduled_tokens)
    cuts = [0, *points, int(ends[-1])]
    first = np.searchsorted(ends, cuts[:-1], side="right").tolist()
    last = np.searchsorted(ends, cuts[1:], side="left").tolist()
    return [
        UBatchSlice(slice(r0, r1 + 1), slice(t0, t1))
        for r0, r1, t0, t1 in zip(first, last, cuts[:-1], cuts[1:], strict=True)
    ]


def split_attn_metadata(
    ubatch_slices: list[Any], common_attn_metadata: Any
) -> list[CommonAttentionMetadata]:
    """Make the metadata of every micro-batch; arguments are those of `reference`."""
    return [_cut(part, common_attn_metadata) for part in ubatch_slices]


def _cut(part: Any, metadata: Any) -> CommonAttentionMetadata:
    requests, tokens = part.request_slice, part.token_slice
    r0, r1, t0, t1 = requests.start, requests.stop, tokens.start, tokens.stop
    old_starts = metadata.query_start_loc_cpu[r0 : r1 + 1]
    starts = old_starts.clamp(t0, t1) - t0
    seq_lens = metadata.seq_lens_cpu[r0:r1].clone()
    computed = metadata.num_computed_tokens_cpu[r0:r1].clone()
    # Only the first and the last request can be cut.
    end = int(old_starts[-1])
    if end > t1:
        seq_lens[-1] -= end - t1
    begin = int(old_starts[0])
    if begin < t0:
        computed[0] += t0 - begin
    encoder = metadata.encoder_seq_lens
    query_lens = starts.diff()
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        num_computed_tokens_cpu=computed,
        num_reqs=r1 - r0,
        num_actual_tokens=t1 - t0,
        max_query_len=int(query_lens.max()) or metadata.max_query_len,
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor[r0:r1],
        slot_mapping=metadata.slot_mapping[t0:t1],
        causal=metadata.causal,
        encoder_seq_lens=None if encoder is None else encoder[r0:r1],
    )
