"""Chunked local attention as ordinary attention over virtual requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fast import CommonAttentionMetadata


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> CommonAttentionMetadata:
    """Make a virtual request of each chunk touched; arguments are those of `reference`."""
    metadata = common_attn_metadata
    starts = metadata.query_start_loc_cpu.numpy()
    seq_lens = metadata.seq_lens_cpu.numpy().astype(np.int64)
    query_lens = np.diff(starts).astype(np.int64)
    begins = seq_lens - query_lens  # the first new position
    first_chunk = np.maximum(np.minimum(begins, seq_lens - 1), 0) // attn_chunk_size
    num_chunks = np.maximum(seq_lens - 1, 0) // attn_chunk_size - first_chunk + 1
    ends = np.cumsum(num_chunks)
    size = int(ends[-1]) if len(ends) else 0
    request = np.repeat(np.arange(len(seq_lens)), num_chunks)
    chunk = np.arange(size) - np.repeat(ends - num_chunks - first_chunk, num_chunks)
    chunk_begin = chunk * attn_chunk_size
    end = np.minimum(chunk_begin + attn_chunk_size, seq_lens[request])
    local_query_lens = end - np.maximum(chunk_begin, begins[request])
    local_seq_lens = (end - chunk_begin).astype(np.int32)
    local_starts = np.zeros(size + 1, np.int32)
    np.cumsum(local_query_lens, out=local_starts[1:])

    columns = attn_chunk_size // block_size
    table = metadata.block_table_tensor
    column = (chunk * columns)[:, None] + np.arange(columns)
    np.minimum(column, table.shape[1] - 1, out=column)
    virtual_table = torch.from_numpy(table.numpy()[request[:, None], column])
    starts_cpu, lens_cpu = torch.from_numpy(local_starts), torch.from_numpy(local_seq_lens)
    computed = (local_seq_lens - local_query_lens).astype(np.int32)
    return CommonAttentionMetadata(
        query_start_loc=starts_cpu,
        query_start_loc_cpu=starts_cpu,
        seq_lens=lens_cpu,
        seq_lens_cpu=lens_cpu,
        num_computed_tokens_cpu=torch.from_numpy(computed),
        num_reqs=size,
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=int(local_query_lens.max()) if size else 0,
        max_seq_len=int(local_seq_lens.max()) if size else 0,
        block_table_tensor=virtual_table,
        slot_mapping=metadata.slot_mapping,
    )
