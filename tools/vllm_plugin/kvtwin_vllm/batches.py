"""Convert a batch between vLLM's metadata and `fast`'s."""

from __future__ import annotations

from types import SimpleNamespace

import fast
from kvtwin_vllm.registry import VllmObject


def make_batch(metadata: VllmObject) -> SimpleNamespace:
    """Return a batch with the fields that `fast` reads, from vLLM's metadata.

    vLLM 0.32 has one field for lengths on the host, `seq_lens_cpu_upper_bound`, and none for
    computed tokens. Without speculative decoding the bound is exact.
    """
    seq_lens_cpu = metadata.seq_lens_cpu_upper_bound
    return SimpleNamespace(
        query_start_loc=metadata.query_start_loc,
        query_start_loc_cpu=metadata.query_start_loc_cpu,
        seq_lens=metadata.seq_lens,
        seq_lens_cpu=seq_lens_cpu,
        num_computed_tokens_cpu=seq_lens_cpu - metadata.query_start_loc_cpu.diff(),
        num_reqs=metadata.num_reqs,
        num_actual_tokens=metadata.num_actual_tokens,
        max_query_len=metadata.max_query_len,
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
        causal=metadata.causal,
        logits_indices_padded=metadata.logits_indices_padded,
        num_logits_indices=metadata.num_logits_indices,
        encoder_seq_lens=None,
        dcp_local_seq_lens=None,
    )


def to_vllm(
    made: fast.CommonAttentionMetadata,
    metadata: VllmObject,
    **others: VllmObject,
) -> VllmObject:
    """Convert metadata that `fast` made to an object of vLLM's class.

    Args:
        made: The metadata that `fast` made.
        metadata: vLLM's metadata; the result has the same class.
        others: Fields that only vLLM's class has.
    """
    return type(metadata)(
        query_start_loc=made.query_start_loc,
        query_start_loc_cpu=made.query_start_loc_cpu,
        seq_lens=made.seq_lens,
        num_reqs=made.num_reqs,
        num_actual_tokens=made.num_actual_tokens,
        max_query_len=made.max_query_len,
        max_seq_len=made.max_seq_len,
        block_table_tensor=made.block_table_tensor,
        slot_mapping=made.slot_mapping,
        causal=made.causal,
        seq_lens_cpu_upper_bound=made.seq_lens_cpu,
        **others,
    )
