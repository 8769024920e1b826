"""The batch plumbing of a paged-KV-cache inference engine, as a product: fast, on CPU or GPU.

The names and their meaning are those of the `reference` package. Arguments and results are torch
tensors, on the CPU or on a CUDA device. `checks` and `warmup` are this package's own.
"""

from fast._checks import checks
from fast.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from fast.block_table import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    BlockTables,
    compute_slot_mapping,
    map_to_kernel_blocks,
)
from fast.buffers import CpuGpuBuffer
from fast.config import (
    CacheConfig,
    CompilationConfig,
    ModelConfig,
    ParallelConfig,
    PassConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from fast.context_parallel import get_dcp_local_seq_lens
from fast.launch import warmup
from fast.local_attention import make_local_attention_virtual_batches
from fast.metadata import CommonAttentionMetadata
from fast.ubatch import (
    UBatchSlice,
    _make_metadata_with_slice,
    create_ubatch_slices,
    slice_query_start_locs,
    split_attn_metadata,
)

__all__ = [
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "BlockTables",
    "CacheConfig",
    "CommonAttentionMetadata",
    "CompilationConfig",
    "CpuGpuBuffer",
    "ModelConfig",
    "ParallelConfig",
    "PassConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
    "UBatchSlice",
    "VllmConfig",
    "_make_metadata_with_slice",
    "checks",
    "compute_slot_mapping",
    "create_ubatch_slices",
    "get_dcp_local_seq_lens",
    "make_local_attention_virtual_batches",
    "map_to_kernel_blocks",
    "reorder_batch_to_split_decodes_and_prefills",
    "slice_query_start_locs",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "warmup",
]
