"""The batch plumbing of a paged-KV-cache inference engine, as a readable reference.

Plain Python over NumPy arrays, written to be read: each docstring is the definition of its
function, and `fast`, the optimised package, must do the same. `reference.x` defines what `fast.x`
implements.

Terms: a *request* is one sequence that is being generated; a *step* is one forward pass over a
batch of requests, in which request `i` brings `q_i` new tokens (its query) after its computed ones,
`s_i` in all (its sequence length). A *position* is a token's index in its request's sequence. A
*block* is `block_size` consecutive positions of a request, stored together; a *slot* is a token's
place in the physical cache. *Padding* is requests without tokens at the end of a batch, and tokens
past those of the last request, that the replay of a captured CUDA graph needs. A *spec* describes
what a layer keeps in the cache, a *page* is the bytes of one block of it, and a *group* is layers
that share a block table.

Errors: a wrong value, shape, length or combination is a `ValueError`; a wrong type or dtype a
`TypeError`; an unknown name a `KeyError`; an index out of range an `IndexError`; a missing
attribute an `AttributeError`. An int is a Python or NumPy integer, not a bool. Sizes of a batch are
at most 2**31 - 1. Everything is checked before anything is changed.

Messages have the same text in `fast`, in checked mode, where tensors are called "arrays" too:
`positions must be int64, got int32`, with the dtype's bare name;
`seq_lens must be an array, got list`. If a value is invalid, they name the argument, its index and
its value, then what is allowed: `seq_lens[3] is 5, less than its query length 8`.
"""

from reference.access import kv_reads, kv_writes
from reference.attention import (
    dense_attention,
    merge_attention_states,
    paged_attention,
    write_kv_cache,
)
from reference.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionGroup,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    get_kv_cache_spec,
    get_layers_from_vllm_config,
    init_attn_backend,
    subclass_attention_backend,
    subclass_attention_metadata,
)
from reference.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from reference.block_size import MultipleOf, prepare_kernel_block_sizes, select_common_block_size
from reference.block_table import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    BlockTables,
    compute_slot_mapping,
    map_to_kernel_blocks,
)
from reference.buffers import CpuGpuBuffer
from reference.causal_conv1d import compute_causal_conv1d_metadata
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
from reference.context_parallel import get_dcp_local_seq_lens, prepare_dcp_local_seq_lens
from reference.fast_prefill import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    KVSharingFastPrefillMetadata,
    create_fast_prefill_custom_backend,
    make_kv_sharing_fast_prefill_common_attn_metadata,
)
from reference.kv_cache import (
    _allocate_kv_cache,
    _reshape_kv_cache,
    add_kv_sharing_layers_to_kv_cache_groups,
    bind_kv_cache,
    extract_layer_index,
    init_kv_cache,
    initialize_kv_cache_for_kv_sharing,
)
from reference.kv_cache_spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from reference.kv_layout import (
    KVCacheLayoutType,
    get_kv_cache_layout,
    is_valid_kv_cache_layout,
    set_kv_cache_layout,
)
from reference.layer_params import (
    PerLayerParameters,
    get_per_layer_parameters,
    infer_global_hyperparameters,
)
from reference.local_attention import make_local_attention_virtual_batches
from reference.memory import MemorySnapshot, request_memory
from reference.metadata import AttnMetadataPlan, CommonAttentionMetadata, build_attn_metadata
from reference.multimodal import (
    MultiModalBudget,
    compute_mm_encoder_budget,
    gather_mm_placeholders,
    sanity_check_mm_encoder_outputs,
    scatter_mm_placeholders,
)
from reference.sequence_parallel import is_residual_scattered_for_sp
from reference.spec_decode import (
    reshape_attn_output_for_spec_decode,
    reshape_query_for_spec_decode,
)
from reference.step import StepBuffers, StepInputs, prepare_step
from reference.step_inputs import (
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)
from reference.step_results import (
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
)
from reference.ubatch import (
    UBatchSlice,
    _make_metadata_with_slice,
    create_ubatch_slices,
    slice_query_start_locs,
    split_attn_metadata,
)

__all__ = [
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
    "NULL_BLOCK_ID",
    "PAD_SLOT_ID",
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionGroup",
    "AttentionMetadata",
    "AttentionMetadataBuilder",
    "AttentionSpec",
    "AttentionType",
    "AttnMetadataPlan",
    "BlockTables",
    "CacheConfig",
    "ChunkedLocalAttentionSpec",
    "CommonAttentionMetadata",
    "CompilationConfig",
    "CpuGpuBuffer",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheLayoutType",
    "KVCacheSpec",
    "KVCacheTensor",
    "KVSharingFastPrefillMetadata",
    "MLAAttentionSpec",
    "MambaSpec",
    "MemorySnapshot",
    "ModelConfig",
    "MultiModalBudget",
    "MultipleOf",
    "ParallelConfig",
    "PassConfig",
    "PerLayerParameters",
    "SchedulerConfig",
    "SlidingWindowSpec",
    "SpeculativeConfig",
    "StepBuffers",
    "StepInputs",
    "UBatchSlice",
    "UniformTypeKVCacheSpecs",
    "VllmConfig",
    "_allocate_kv_cache",
    "_make_metadata_with_slice",
    "_reshape_kv_cache",
    "add_kv_sharing_layers_to_kv_cache_groups",
    "bind_kv_cache",
    "build_attn_metadata",
    "combine_sampled_and_draft_tokens",
    "compute_causal_conv1d_metadata",
    "compute_mm_encoder_budget",
    "compute_slot_mapping",
    "create_fast_prefill_custom_backend",
    "create_ubatch_slices",
    "dense_attention",
    "expand_idx_mapping",
    "extract_layer_index",
    "gather_mm_placeholders",
    "get_dcp_local_seq_lens",
    "get_kv_cache_layout",
    "get_kv_cache_spec",
    "get_layers_from_vllm_config",
    "get_num_sampled_and_rejected",
    "get_per_layer_parameters",
    "infer_global_hyperparameters",
    "init_attn_backend",
    "init_kv_cache",
    "initialize_kv_cache_for_kv_sharing",
    "is_residual_scattered_for_sp",
    "is_valid_kv_cache_layout",
    "kv_reads",
    "kv_writes",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "make_local_attention_virtual_batches",
    "map_to_kernel_blocks",
    "merge_attention_states",
    "paged_attention",
    "post_update",
    "post_update_num_computed_tokens",
    "prepare_dcp_local_seq_lens",
    "prepare_kernel_block_sizes",
    "prepare_pos_seq_lens",
    "prepare_prefill_inputs",
    "prepare_step",
    "reorder_batch_to_split_decodes_and_prefills",
    "request_memory",
    "reshape_attn_output_for_spec_decode",
    "reshape_query_for_spec_decode",
    "sanity_check_mm_encoder_outputs",
    "scatter_mm_placeholders",
    "select_common_block_size",
    "set_kv_cache_layout",
    "slice_query_start_locs",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "split_decodes_prefills_and_extends",
    "subclass_attention_backend",
    "subclass_attention_metadata",
    "write_kv_cache",
]
