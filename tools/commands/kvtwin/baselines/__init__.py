"""Baselines: the hot functions in vectorised NumPy, and in torch where that is usual.

`fast` is timed against them. Each is written as an experienced engineer would write it for the
host, with tricks that cost nothing (views, early returns, preallocated buffers) and without
`fast`'s checks: they expect valid input. `kvtwin bench` compares their results with `reference`'s
before it times them. They use `fast`'s classes of batches and micro-batches.
"""

from fast import CommonAttentionMetadata, UBatchSlice
from kvtwin.baselines.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from kvtwin.baselines.block_table import BlockTables
from kvtwin.baselines.causal_conv1d import compute_causal_conv1d_metadata
from kvtwin.baselines.context_parallel import get_dcp_local_seq_lens
from kvtwin.baselines.fast_prefill import make_kv_sharing_fast_prefill_common_attn_metadata
from kvtwin.baselines.local_attention import make_local_attention_virtual_batches
from kvtwin.baselines.metadata import build_attn_metadata
from kvtwin.baselines.multimodal import gather_mm_placeholders, scatter_mm_placeholders
from kvtwin.baselines.slots import compute_slot_mapping
from kvtwin.baselines.ubatch import create_ubatch_slices, split_attn_metadata

__all__ = [
    "BlockTables",
    "CommonAttentionMetadata",
    "UBatchSlice",
    "build_attn_metadata",
    "compute_causal_conv1d_metadata",
    "compute_slot_mapping",
    "create_ubatch_slices",
    "gather_mm_placeholders",
    "get_dcp_local_seq_lens",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "make_local_attention_virtual_batches",
    "reorder_batch_to_split_decodes_and_prefills",
    "scatter_mm_placeholders",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
]
