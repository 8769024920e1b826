"""Every name that both packages offer, with its parameters: the one list of them.

A value is a signature without annotations; None is a constant, a type or an enum. Methods are
listed with the class that defines them.
"""

from __future__ import annotations

REFERENCE_ALONE: dict[str, str | None] = {
    "kv_reads": (
        "metadata, block_size, *, kernel_block_size=None, cp_world_size=1, cp_rank=0, "
        "cp_kv_cache_interleave_size=1"
    ),
    "kv_writes": "metadata",
    "dense_attention": "q, k, v, mask, *, scale=None",
    "paged_attention": (
        "q, kv_cache, metadata, *, scale=None, sliding_window=None, cp_world_size=1, cp_rank=0, "
        "cp_kv_cache_interleave_size=1"
    ),
    "merge_attention_states": "outputs, lses",
    "write_kv_cache": "key, value, kv_cache, slot_mapping",
}
"""What a batch means, and what attention computes of it."""

FAST_ALONE = {"checks", "warmup", "MemorySnapshot.measure"}

KEYWORDS_OF_FAST_ALONE: dict[str, tuple[str, ...]] = {
    "compute_causal_conv1d_metadata": ("query_start_loc_p_cpu",),
    "gather_mm_placeholders": ("num_embeds",),
    "make_kv_sharing_fast_prefill_common_attn_metadata": ("logits_indices_cpu",),
}
"""Values that `fast` would otherwise read from the device; None by default."""

SHARED: dict[str, dict[str, str | None]] = {
    "config": {
        "VllmConfig": (
            "*, model_config=None, cache_config=None, parallel_config=None, scheduler_config=None, "
            "compilation_config=None, speculative_config=None"
        ),
        "ModelConfig": "*, max_model_len",
        "CacheConfig": "*, block_size=16, gpu_memory_utilization=0.9, mamba_cache_mode='none'",
        "ParallelConfig": (
            "*, tensor_parallel_size=1, decode_context_parallel_size=1, "
            "prefill_context_parallel_size=1"
        ),
        "SchedulerConfig": (
            "*, max_num_batched_tokens, max_num_seqs, max_num_encoder_input_tokens=0, "
            "encoder_cache_size=0, enable_chunked_prefill=True, disable_chunked_mm_input=False"
        ),
        "CompilationConfig": (
            "*, static_forward_context=<factory>, pass_config=<factory>, splitting_ops=None, "
            "use_inductor_graph_partition=False, compile_sizes=None"
        ),
        "PassConfig": "*, enable_sp=False",
        "SpeculativeConfig": "*, num_speculative_tokens=None",
    },
    "kv_cache_spec": {
        "KVCacheSpec": "block_size",
        "KVCacheSpec.max_memory_usage_bytes": "self, vllm_config",
        "KVCacheSpec.copy_with_new_block_size": "self, block_size",
        "KVCacheSpec.merge": "specs",
        "AttentionSpec": "block_size, num_kv_heads, head_size, dtype",
        "FullAttentionSpec": (
            "block_size, num_kv_heads, head_size, dtype, sliding_window=None, "
            "attention_chunk_size=None"
        ),
        "FullAttentionSpec.max_memory_usage_bytes": "self, vllm_config",
        "FullAttentionSpec.merge": "specs",
        "MLAAttentionSpec": (
            "block_size, num_kv_heads, head_size, dtype, sliding_window=None, "
            "attention_chunk_size=None, cache_dtype_str=None"
        ),
        "MLAAttentionSpec.merge": "specs",
        "SlidingWindowSpec": "block_size, num_kv_heads, head_size, dtype, sliding_window",
        "SlidingWindowSpec.max_memory_usage_bytes": "self, vllm_config",
        "ChunkedLocalAttentionSpec": (
            "block_size, num_kv_heads, head_size, dtype, attention_chunk_size"
        ),
        "ChunkedLocalAttentionSpec.max_memory_usage_bytes": "self, vllm_config",
        "CrossAttentionSpec": "block_size, num_kv_heads, head_size, dtype",
        "CrossAttentionSpec.max_memory_usage_bytes": "self, vllm_config",
        "EncoderOnlyAttentionSpec": "block_size, num_kv_heads, head_size, dtype",
        "EncoderOnlyAttentionSpec.max_memory_usage_bytes": "self, vllm_config",
        "MambaSpec": (
            "block_size, shapes, dtypes, page_size_padded=None, mamba_type='mamba2', "
            "num_speculative_blocks=0"
        ),
        "MambaSpec.max_memory_usage_bytes": "self, vllm_config",
        "UniformTypeKVCacheSpecs": "block_size, kv_cache_specs",
        "UniformTypeKVCacheSpecs.max_memory_usage_bytes": "self, vllm_config",
        "UniformTypeKVCacheSpecs.copy_with_new_block_size": "self, block_size",
        "UniformTypeKVCacheSpecs.is_uniform_type": "specs",
        "UniformTypeKVCacheSpecs.from_specs": "specs",
        "KVCacheTensor": "size, shared_by",
        "KVCacheGroupSpec": "layer_names, kv_cache_spec",
        "KVCacheConfig": "num_blocks, kv_cache_tensors, kv_cache_groups",
    },
    "kv_layout": {
        "KVCacheLayoutType": None,
        "is_valid_kv_cache_layout": "value",
        "get_kv_cache_layout": "",
        "set_kv_cache_layout": "cache_layout",
    },
    "kv_cache": {
        "_allocate_kv_cache": "kv_cache_config, device",
        "_reshape_kv_cache": (
            "kv_cache_config, kv_cache_raw_tensors, attn_backends, kernel_block_sizes=None"
        ),
        "init_kv_cache": (
            "runner_kv_caches, forward_context, kv_cache_config, attn_backends, device, *, "
            "kernel_block_sizes=None, num_attn_module=1"
        ),
        "bind_kv_cache": "kv_caches, forward_context, runner_kv_caches, num_attn_module=1",
        "extract_layer_index": "layer_name, num_attn_module=1",
        "initialize_kv_cache_for_kv_sharing": "shared_kv_cache_layers, kv_cache_groups, kv_caches",
        "add_kv_sharing_layers_to_kv_cache_groups": (
            "shared_kv_cache_layers, kv_cache_groups, runner_only_attn_layers=None"
        ),
    },
    "block_size": {
        "MultipleOf": "base",
        "select_common_block_size": "kv_manager_block_size, attn_groups",
        "prepare_kernel_block_sizes": "kv_cache_config, attn_groups",
    },
    "memory": {
        "MemorySnapshot": "free_memory, total_memory, device=None",
        "request_memory": "init_snapshot, cache_config",
    },
    "buffers": {
        "CpuGpuBuffer": "*size, dtype, device, pin_memory",
        "CpuGpuBuffer.copy_to_gpu": "self, n=None",
        "CpuGpuBuffer.copy_to_cpu": "self, n=None",
    },
    "block_table": {
        "PAD_SLOT_ID": None,
        "NULL_BLOCK_ID": None,
        "BlockTables": (
            "block_sizes, max_num_reqs, max_num_batched_tokens, max_model_len, device, pin_memory"
        ),
        "BlockTables.append_block_ids": (
            "self, req_indices, cu_num_new_blocks, new_block_ids, overwrite"
        ),
        "BlockTables.move_row": "self, src, dst",
        "BlockTables.swap_rows": "self, a, b",
        "BlockTables.clear_row": "self, r",
        "BlockTables.gather_block_tables": "self, idx_mapping",
        "BlockTables.compute_slot_mappings": "self, query_start_loc, positions",
        "BlockTables.get_dummy_block_tables": "self, num_reqs",
        "BlockTables.get_dummy_slot_mappings": "self, num_tokens",
        "compute_slot_mapping": (
            "block_table, query_start_loc, positions, block_size, *, kernel_block_size=None, "
            "cp_world_size=1, cp_rank=0, cp_kv_cache_interleave_size=1, out=None"
        ),
        "map_to_kernel_blocks": "block_ids, blocks_per_kv_block",
    },
    "metadata": {
        "CommonAttentionMetadata": (
            "query_start_loc, query_start_loc_cpu, seq_lens, seq_lens_cpu, "
            "num_computed_tokens_cpu, num_reqs, num_actual_tokens, max_query_len, max_seq_len, "
            "block_table_tensor, slot_mapping, causal=True, logits_indices_padded=None, "
            "num_logits_indices=None, encoder_seq_lens=None, dcp_local_seq_lens=None"
        ),
        "CommonAttentionMetadata.unpadded": "self, num_actual_tokens, num_actual_reqs",
        "CommonAttentionMetadata.validate": "self, block_size=None",
        "build_attn_metadata": (
            "attn_metadata_builders, num_reqs, num_tokens, query_start_loc, seq_lens, "
            "num_computed_tokens_cpu, block_tables, slot_mappings, kv_cache_config, "
            "max_query_len=None, max_seq_len=None"
        ),
    },
    "batch_order": {
        "split_decodes_and_prefills": (
            "common_attn_metadata, decode_threshold=1, require_uniform=False"
        ),
        "split_decodes_prefills_and_extends": "common_attn_metadata, decode_threshold=1",
        "reorder_batch_to_split_decodes_and_prefills": (
            "input_batch, scheduler_output, decode_threshold=1, *, regions=3"
        ),
    },
    "ubatch": {
        "UBatchSlice": "request_slice, token_slice",
        "UBatchSlice.is_empty": "self",
        "create_ubatch_slices": "num_scheduled_tokens, split_points",
        "slice_query_start_locs": "query_start_loc, request_slice",
        "_make_metadata_with_slice": "ubatch_slice, attn_metadata",
        "split_attn_metadata": "ubatch_slices, common_attn_metadata",
    },
    "local_attention": {
        "make_local_attention_virtual_batches": (
            "attn_chunk_size, common_attn_metadata, block_size=0"
        ),
    },
    "fast_prefill": {
        "KV_SHARING_FAST_PREFILL_METADATA_FIELDS": None,
        "KVSharingFastPrefillMetadata": None,
        "make_kv_sharing_fast_prefill_common_attn_metadata": "common_attn_metadata",
        "create_fast_prefill_custom_backend": "prefix, underlying_attn_backend",
    },
    "spec_decode": {
        "reshape_query_for_spec_decode": "query, batch_size",
        "reshape_attn_output_for_spec_decode": "attn_output",
    },
    "causal_conv1d": {
        "compute_causal_conv1d_metadata": "query_start_loc_p",
    },
    "context_parallel": {
        "get_dcp_local_seq_lens": (
            "seq_lens, dcp_size=1, dcp_rank=None, cp_kv_cache_interleave_size=1, *, out=None"
        ),
    },
    "sequence_parallel": {
        "is_residual_scattered_for_sp": "vllm_config, num_input_tokens",
    },
    "backend": {
        "AttentionType": "",
        "AttentionBackend": "",
        "AttentionBackend.get_name": "",
        "AttentionBackend.get_builder_cls": "",
        "AttentionBackend.get_kv_cache_shape": (
            "num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str='auto'"
        ),
        "AttentionBackend.get_supported_kernel_block_sizes": "",
        "AttentionBackend.get_kv_cache_stride_order": "",
        "AttentionMetadata": "",
        "AttentionCGSupport": None,
        "AttentionMetadataBuilder": "kv_cache_spec, layer_names, vllm_config, device",
        "AttentionMetadataBuilder.get_cudagraph_support": "vllm_config, kv_cache_spec",
        "AttentionMetadataBuilder._init_reorder_batch_threshold": (
            "self, reorder_batch_threshold=1, supports_spec_as_decode=False, "
            "supports_dcp_with_varlen=False"
        ),
        "AttentionMetadataBuilder.build": (
            "self, common_prefix_len, common_attn_metadata, fast_build=False"
        ),
        "AttentionMetadataBuilder.build_for_cudagraph_capture": "self, common_attn_metadata",
        "AttentionMetadataBuilder.build_for_drafting": "self, common_attn_metadata, draft_index",
        "AttentionMetadataBuilder.use_cascade_attention": "self, *args, **kwargs",
        "AttentionGroup": "backend, metadata_builders, layer_names, kv_cache_spec",
        "AttentionGroup.create_with_metadata_builders": (
            "backend, layer_names, kv_cache_spec, vllm_config, device, num_metadata_builders=1"
        ),
        "AttentionGroup.get_metadata_builder": "self, ubatch_id=0",
        "subclass_attention_backend": "name_prefix, attention_backend_cls, builder_cls",
        "subclass_attention_metadata": "name_prefix, metadata_cls, fields",
        "get_layers_from_vllm_config": "vllm_config, layer_type, layer_names=None",
        "get_kv_cache_spec": "vllm_config, kv_cache_dtype",
        "init_attn_backend": "kv_cache_config, vllm_config, device",
    },
    "layer_params": {
        "PerLayerParameters": (
            "window_left, logits_soft_cap, sm_scale, has_sinks=False, has_same_window_lefts=None, "
            "has_same_all_params=None"
        ),
        "get_per_layer_parameters": "vllm_config, layer_names, cls_",
        "infer_global_hyperparameters": "per_layer_params",
    },
    "multimodal": {
        "MultiModalBudget": "model_config, scheduler_config, mm_registry",
        "MultiModalBudget.get_encoder_budget": "self",
        "MultiModalBudget.get_modality_with_max_tokens": "self",
        "MultiModalBudget.get_max_items": "self, modality, max_tokens_per_item",
        "MultiModalBudget.reset_cache": "self",
        "compute_mm_encoder_budget": "scheduler_config, max_tokens_by_modality",
        "scatter_mm_placeholders": "embeds, is_embed, *, out=None",
        "gather_mm_placeholders": "placeholders, is_embed, *, out=None",
        "sanity_check_mm_encoder_outputs": "mm_embeddings, expected_num_items",
    },
}
"""By module."""

NAMES = {name: signature for names in SHARED.values() for name, signature in names.items()}
