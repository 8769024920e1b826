"""The metadata of a batch, built for every layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fast import CommonAttentionMetadata


def build_attn_metadata(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    block_tables: Any,
    slot_mappings: Any,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
) -> dict[str, Any]:
    """Build the metadata of each group with its builder; arguments are those of `reference`."""
    starts_cpu = query_start_loc.cpu[: num_reqs + 1]
    lens_cpu = seq_lens.cpu[:num_reqs]
    starts, lens = query_start_loc.gpu[: num_reqs + 1], seq_lens.gpu[:num_reqs]
    computed = num_computed_tokens_cpu[:num_reqs]
    if max_query_len is None:
        max_query_len = int(np.diff(starts_cpu.numpy()).max(initial=0))
    if max_seq_len is None:
        max_seq_len = int(lens_cpu.numpy().max(initial=0))
    built = {}
    for i, group in enumerate(kv_cache_config.kv_cache_groups):
        metadata = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts_cpu,
            seq_lens=lens,
            seq_lens_cpu=lens_cpu,
            num_computed_tokens_cpu=computed,
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            block_table_tensor=block_tables[i],
            slot_mapping=slot_mappings[i],
        )
        for_group = attn_metadata_builders[i].build(
            common_prefix_len=0, common_attn_metadata=metadata
        )
        for name in group.layer_names:
            built[name] = for_group
    return built
