"""KV-sharing fast prefill: a batch reduced to the tokens whose logits are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fast import CommonAttentionMetadata


def make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata: Any) -> Any:
    """Cut a batch to the tokens with logits; the argument is that of `reference`."""
    metadata = common_attn_metadata
    indices = metadata.logits_indices_padded
    if indices is None or metadata.max_query_len == 1:
        return metadata
    num_logits = int(metadata.num_logits_indices)
    indices = indices.numpy()[:num_logits]
    starts = np.searchsorted(indices, metadata.query_start_loc_cpu.numpy()).astype(np.int32)
    starts_cpu = torch.from_numpy(starts)
    return CommonAttentionMetadata(
        query_start_loc=starts_cpu,
        query_start_loc_cpu=starts_cpu,
        seq_lens=metadata.seq_lens,
        seq_lens_cpu=metadata.seq_lens_cpu,
        num_computed_tokens_cpu=metadata.num_computed_tokens_cpu,
        num_reqs=metadata.num_reqs,
        num_actual_tokens=num_logits,
        max_query_len=int(np.diff(starts).max()),
        max_seq_len=metadata.max_seq_len,
        block_table_tensor=metadata.block_table_tensor,
        slot_mapping=metadata.slot_mapping,
    )
