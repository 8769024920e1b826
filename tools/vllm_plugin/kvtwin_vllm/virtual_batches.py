"""Chunked local attention as attention over virtual requests."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeAlias

import torch

import fast
from fast._native.local_attention import find_virtual_requests, gather_columns
from kvtwin_vllm.batches import to_vllm
from kvtwin_vllm.registry import VllmObject, replaces

MakeBlockTable: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Makes the block table of the virtual requests from that of a KV cache group."""


@replaces("vllm.v1.attention.backends.utils")
def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: VllmObject, block_size: int = 0
) -> tuple[VllmObject, MakeBlockTable]:
    """Make one virtual request of each chunk, and a function that makes other groups' tables."""
    table = common_attn_metadata.block_table_tensor
    if block_size < 1 or attn_chunk_size % block_size or not table.is_cpu:
        return _make_with_checks(attn_chunk_size, common_attn_metadata, block_size)
    # The loops of `fast` without its metadata class: saves 50 us in a step.
    metadata, columns = common_attn_metadata, attn_chunk_size // block_size
    virtual = find_virtual_requests(
        metadata.query_start_loc_cpu,
        metadata.seq_lens,
        metadata.num_reqs,
        metadata.num_actual_tokens,
        attn_chunk_size,
        columns,
    )
    size, vectors, max_query_len, max_seq_len = virtual
    starts = torch.from_numpy(vectors[: size + 1])
    seq_lens = torch.from_numpy(vectors[size + 1 : 2 * size + 1])

    def make_block_table(block_table: torch.Tensor) -> torch.Tensor:
        return gather_columns(block_table, virtual, columns)

    made = type(metadata)(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        num_reqs=size,
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_table_tensor=make_block_table(table),
        slot_mapping=metadata.slot_mapping,
        seq_lens_cpu_upper_bound=seq_lens,
    )
    return made, make_block_table


def _make_with_checks(
    attn_chunk_size: int, metadata: VllmObject, block_size: int
) -> tuple[VllmObject, MakeBlockTable]:
    """Do the same on a GPU, or raise the error of invalid sizes."""
    batch = SimpleNamespace(
        num_reqs=metadata.num_reqs,
        num_actual_tokens=metadata.num_actual_tokens,
        query_start_loc_cpu=metadata.query_start_loc_cpu,
        seq_lens_cpu=metadata.seq_lens.cpu(),  # synchronises, as vLLM does here
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
    )
    virtual = fast.make_local_attention_virtual_batches(attn_chunk_size, batch, block_size)

    def make_block_table(block_table: torch.Tensor) -> torch.Tensor:
        batch.block_table_tensor = block_table
        again = fast.make_local_attention_virtual_batches(attn_chunk_size, batch, block_size)
        return again.block_table_tensor

    return to_vllm(virtual, metadata), make_block_table
