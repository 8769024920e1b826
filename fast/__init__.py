"""The batch plumbing of a paged-KV-cache inference engine, optimised for the CPU and the GPU.

The functions are defined by the `reference` package: a docstring here has a summary, the
differences and additions, and a pointer to its definition. `checks` and `warmup` exist only here.
In general:

- Arrays are torch tensors, on the CPU or on a CUDA device; dtypes are torch dtypes. NumPy arrays
  remain where a scheduler passes them (`num_scheduled_tokens`, `encoder_seq_lens`, an input batch).
  The tensors of one call must be on one device, or a `ValueError` is raised.
- Types, dtypes, shapes, counts and Python lists are always checked; values inside tensors only in
  checked mode, unless a docstring says otherwise.
- On a GPU a call runs on torch's current stream and does not synchronise, unless its docstring says
  so or checked mode is on.
"""

from fast.backend import (
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
from fast.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from fast.block_size import MultipleOf, prepare_kernel_block_sizes, select_common_block_size
from fast.block_table import (
    NULL_BLOCK_ID,
    PAD_SLOT_ID,
    BlockTables,
    compute_slot_mapping,
    map_to_kernel_blocks,
)
from fast.buffers import CpuGpuBuffer
from fast.causal_conv1d import compute_causal_conv1d_metadata
from fast.checked_mode import checks
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
from fast.context_parallel import get_dcp_local_seq_lens, prepare_dcp_local_seq_lens
from fast.fast_prefill import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    KVSharingFastPrefillMetadata,
    create_fast_prefill_custom_backend,
    make_kv_sharing_fast_prefill_common_attn_metadata,
)
from fast.kv_cache import (
    _allocate_kv_cache,
    _reshape_kv_cache,
    add_kv_sharing_layers_to_kv_cache_groups,
    bind_kv_cache,
    extract_layer_index,
    init_kv_cache,
    initialize_kv_cache_for_kv_sharing,
)
from fast.kv_cache_spec import (
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
from fast.kv_layout import (
    KVCacheLayoutType,
    get_kv_cache_layout,
    is_valid_kv_cache_layout,
    set_kv_cache_layout,
)
from fast.layer_params import (
    PerLayerParameters,
    get_per_layer_parameters,
    infer_global_hyperparameters,
)
from fast.local_attention import make_local_attention_virtual_batches
from fast.memory import MemorySnapshot, request_memory
from fast.metadata import AttnMetadataPlan, CommonAttentionMetadata, build_attn_metadata
from fast.multimodal import (
    MultiModalBudget,
    compute_mm_encoder_budget,
    gather_mm_placeholders,
    sanity_check_mm_encoder_outputs,
    scatter_mm_placeholders,
)
from fast.sequence_parallel import is_residual_scattered_for_sp
from fast.spec_decode import (
    reshape_attn_output_for_spec_decode,
    reshape_query_for_spec_decode,
)
from fast.step import StepBuffers, StepInputs, prepare_step
from fast.step_inputs import (
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)
from fast.step_results import (
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
)
from fast.ubatch import (
    UBatchSlice,
    _make_metadata_with_slice,
    create_ubatch_slices,
    slice_query_start_locs,
    split_attn_metadata,
)
from fast.warmup_calls import warmup

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
    "checks",
    "combine_sampled_and_draft_tokens",
    "compute_causal_conv1d_metadata",
    "compute_mm_encoder_budget",
    "compute_slot_mapping",
    "create_fast_prefill_custom_backend",
    "create_ubatch_slices",
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
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "make_local_attention_virtual_batches",
    "map_to_kernel_blocks",
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
    "warmup",
]
