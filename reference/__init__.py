"""The batch plumbing of a paged-KV-cache inference engine, as its meaning.

Plain Python over NumPy arrays, written to be read: each docstring is the definition of its
function, and `fast`, the product, must do the same. Module `x` here is module `x` there.

Words: a *request* is one sequence being generated; a *step* is one forward pass over a batch of
requests, in which request `i` brings `q_i` new tokens (its query) after its computed ones, `s_i` in
all (its sequence length). A *position* is a token's index in its request's sequence. A *block* is
`block_size` consecutive positions of a request, stored together; a *slot* is a token's place in the
physical cache. *Padding* is requests of zero tokens at a batch's end, and tokens past the last
request's, that a captured CUDA graph needs to be replayed.

Errors: a wrong value, shape, length or combination is a `ValueError`; a wrong type or dtype a
`TypeError`; a name that is not there a `KeyError`; an index out of range an `IndexError`; an
attribute that an object lacks an `AttributeError`. An int is a Python or NumPy integer, not a bool.
Sizes are at most 2**31 - 1. Everything is checked before anything is changed.
"""

from reference.access import kv_reads, kv_writes
from reference.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from reference.block_table import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    BlockTables,
    compute_slot_mapping,
    map_to_kernel_blocks,
)
from reference.buffers import CpuGpuBuffer
from reference.config import (
    CacheConfig,
    CompilationConfig,
    ModelConfig,
    ParallelConfig,
    PassConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from reference.context_parallel import get_dcp_local_seq_lens
from reference.local_attention import make_local_attention_virtual_batches
from reference.metadata import CommonAttentionMetadata
from reference.ubatch import (
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
    "compute_slot_mapping",
    "create_ubatch_slices",
    "get_dcp_local_seq_lens",
    "kv_reads",
    "kv_writes",
    "make_local_attention_virtual_batches",
    "map_to_kernel_blocks",
    "reorder_batch_to_split_decodes_and_prefills",
    "slice_query_start_locs",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
]
