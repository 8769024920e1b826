"""The package: its names, its imports, and the examples in its docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import reference

MODULES = sorted(module.name for module in pkgutil.iter_modules(reference.__path__))

NAMES = """
VllmConfig ModelConfig CacheConfig ParallelConfig SchedulerConfig CompilationConfig PassConfig
SpeculativeConfig CpuGpuBuffer PAD_SLOT_ID NULL_BLOCK_ID BlockTables compute_slot_mapping
map_to_kernel_blocks CommonAttentionMetadata split_decodes_and_prefills
split_decodes_prefills_and_extends reorder_batch_to_split_decodes_and_prefills UBatchSlice
create_ubatch_slices slice_query_start_locs _make_metadata_with_slice split_attn_metadata
make_local_attention_virtual_batches get_dcp_local_seq_lens kv_reads kv_writes
KVCacheSpec AttentionSpec FullAttentionSpec MLAAttentionSpec SlidingWindowSpec
ChunkedLocalAttentionSpec CrossAttentionSpec EncoderOnlyAttentionSpec MambaSpec
UniformTypeKVCacheSpecs KVCacheTensor KVCacheGroupSpec KVCacheConfig KVCacheLayoutType
is_valid_kv_cache_layout get_kv_cache_layout set_kv_cache_layout _allocate_kv_cache
_reshape_kv_cache init_kv_cache bind_kv_cache extract_layer_index
initialize_kv_cache_for_kv_sharing add_kv_sharing_layers_to_kv_cache_groups MultipleOf
select_common_block_size prepare_kernel_block_sizes MemorySnapshot request_memory
AttentionType AttentionBackend AttentionMetadata AttentionCGSupport AttentionMetadataBuilder
AttentionGroup subclass_attention_backend subclass_attention_metadata get_layers_from_vllm_config
get_kv_cache_spec init_attn_backend build_attn_metadata PerLayerParameters get_per_layer_parameters
infer_global_hyperparameters
KV_SHARING_FAST_PREFILL_METADATA_FIELDS KVSharingFastPrefillMetadata
make_kv_sharing_fast_prefill_common_attn_metadata create_fast_prefill_custom_backend
reshape_query_for_spec_decode reshape_attn_output_for_spec_decode compute_causal_conv1d_metadata
is_residual_scattered_for_sp MultiModalBudget compute_mm_encoder_budget scatter_mm_placeholders
gather_mm_placeholders sanity_check_mm_encoder_outputs
"""


def test_names() -> None:
    """Every name of these modules is importable from the package, which states it in __all__."""
    assert set(NAMES.split()) <= set(reference.__all__)
    assert len(reference.__all__) == len(set(reference.__all__))
    for name in reference.__all__:
        assert hasattr(reference, name), name


SIGNATURES = {
    "compute_slot_mapping": "block_table, query_start_loc, positions, block_size, *, "
    "kernel_block_size=None, cp_world_size=1, cp_rank=0, cp_kv_cache_interleave_size=1, out=None",
    "map_to_kernel_blocks": "block_ids, blocks_per_kv_block",
    "BlockTables": "block_sizes, max_num_reqs, max_num_batched_tokens, max_model_len, device, "
    "pin_memory",
    "BlockTables.append_block_ids": "self, req_indices, cu_num_new_blocks, new_block_ids, "
    "overwrite",
    "BlockTables.move_row": "self, src, dst",
    "BlockTables.swap_rows": "self, a, b",
    "BlockTables.clear_row": "self, r",
    "BlockTables.gather_block_tables": "self, idx_mapping",
    "BlockTables.compute_slot_mappings": "self, query_start_loc, positions",
    "BlockTables.get_dummy_block_tables": "self, num_reqs",
    "BlockTables.get_dummy_slot_mappings": "self, num_tokens",
    "CpuGpuBuffer": "*size, dtype, device, pin_memory",
    "CpuGpuBuffer.copy_to_gpu": "self, n=None",
    "CpuGpuBuffer.copy_to_cpu": "self, n=None",
    "CommonAttentionMetadata.unpadded": "self, num_actual_tokens, num_actual_reqs",
    "CommonAttentionMetadata.validate": "self, block_size=None",
    "split_decodes_and_prefills": "common_attn_metadata, decode_threshold=1, require_uniform=False",
    "split_decodes_prefills_and_extends": "common_attn_metadata, decode_threshold=1",
    "reorder_batch_to_split_decodes_and_prefills": "input_batch, scheduler_output, "
    "decode_threshold=1, *, regions=3",
    "UBatchSlice": "request_slice, token_slice",
    "UBatchSlice.is_empty": "self",
    "create_ubatch_slices": "num_scheduled_tokens, split_points",
    "slice_query_start_locs": "query_start_loc, request_slice",
    "_make_metadata_with_slice": "ubatch_slice, attn_metadata",
    "split_attn_metadata": "ubatch_slices, common_attn_metadata",
    "make_local_attention_virtual_batches": "attn_chunk_size, common_attn_metadata, block_size=0",
    "get_dcp_local_seq_lens": "seq_lens, dcp_size=1, dcp_rank=None, cp_kv_cache_interleave_size=1",
    "kv_reads": "metadata, block_size, *, kernel_block_size=None, cp_world_size=1, cp_rank=0, "
    "cp_kv_cache_interleave_size=1",
    "kv_writes": "metadata",
    "KVCacheSpec": "block_size",
    "KVCacheSpec.max_memory_usage_bytes": "self, vllm_config",
    "KVCacheSpec.copy_with_new_block_size": "self, block_size",
    "KVCacheSpec.merge": "specs",
    "AttentionSpec": "block_size, num_kv_heads, head_size, dtype",
    "FullAttentionSpec": "block_size, num_kv_heads, head_size, dtype, sliding_window=None, "
    "attention_chunk_size=None",
    "MLAAttentionSpec": "block_size, num_kv_heads, head_size, dtype, sliding_window=None, "
    "attention_chunk_size=None, cache_dtype_str=None",
    "SlidingWindowSpec": "block_size, num_kv_heads, head_size, dtype, sliding_window",
    "ChunkedLocalAttentionSpec": "block_size, num_kv_heads, head_size, dtype, attention_chunk_size",
    "CrossAttentionSpec": "block_size, num_kv_heads, head_size, dtype",
    "EncoderOnlyAttentionSpec": "block_size, num_kv_heads, head_size, dtype",
    "MambaSpec": "block_size, shapes, dtypes, page_size_padded=None, mamba_type='mamba2', "
    "num_speculative_blocks=0",
    "UniformTypeKVCacheSpecs": "block_size, kv_cache_specs",
    "UniformTypeKVCacheSpecs.is_uniform_type": "specs",
    "UniformTypeKVCacheSpecs.from_specs": "specs",
    "KVCacheTensor": "size, shared_by",
    "KVCacheGroupSpec": "layer_names, kv_cache_spec",
    "KVCacheConfig": "num_blocks, kv_cache_tensors, kv_cache_groups",
    "is_valid_kv_cache_layout": "value",
    "get_kv_cache_layout": "",
    "set_kv_cache_layout": "cache_layout",
    "_allocate_kv_cache": "kv_cache_config, device",
    "_reshape_kv_cache": "kv_cache_config, kv_cache_raw_tensors, attn_backends, "
    "kernel_block_sizes=None",
    "init_kv_cache": "runner_kv_caches, forward_context, kv_cache_config, attn_backends, device, "
    "*, kernel_block_sizes=None, num_attn_module=1",
    "extract_layer_index": "layer_name, num_attn_module=1",
    "bind_kv_cache": "kv_caches, forward_context, runner_kv_caches, num_attn_module=1",
    "initialize_kv_cache_for_kv_sharing": "shared_kv_cache_layers, kv_cache_groups, kv_caches",
    "add_kv_sharing_layers_to_kv_cache_groups": "shared_kv_cache_layers, kv_cache_groups, "
    "runner_only_attn_layers=None",
    "MultipleOf": "base",
    "select_common_block_size": "kv_manager_block_size, attn_groups",
    "prepare_kernel_block_sizes": "kv_cache_config, attn_groups",
    "MemorySnapshot": "free_memory, total_memory, device=None",
    "request_memory": "init_snapshot, cache_config",
    "AttentionBackend.get_name": "",
    "AttentionBackend.get_builder_cls": "",
    "AttentionBackend.get_kv_cache_shape": "num_blocks, block_size, num_kv_heads, head_size, "
    "cache_dtype_str='auto'",
    "AttentionBackend.get_supported_kernel_block_sizes": "",
    "AttentionBackend.get_kv_cache_stride_order": "",
    "AttentionMetadataBuilder": "kv_cache_spec, layer_names, vllm_config, device",
    "AttentionMetadataBuilder.get_cudagraph_support": "vllm_config, kv_cache_spec",
    "AttentionMetadataBuilder._init_reorder_batch_threshold": "self, reorder_batch_threshold=1, "
    "supports_spec_as_decode=False, supports_dcp_with_varlen=False",
    "AttentionMetadataBuilder.build": "self, common_prefix_len, common_attn_metadata, "
    "fast_build=False",
    "AttentionMetadataBuilder.build_for_cudagraph_capture": "self, common_attn_metadata",
    "AttentionMetadataBuilder.build_for_drafting": "self, common_attn_metadata, draft_index",
    "AttentionMetadataBuilder.use_cascade_attention": "self, *args, **kwargs",
    "AttentionGroup": "backend, metadata_builders, layer_names, kv_cache_spec",
    "AttentionGroup.create_with_metadata_builders": "backend, layer_names, kv_cache_spec, "
    "vllm_config, device, num_metadata_builders=1",
    "AttentionGroup.get_metadata_builder": "self, ubatch_id=0",
    "subclass_attention_backend": "name_prefix, attention_backend_cls, builder_cls",
    "subclass_attention_metadata": "name_prefix, metadata_cls, fields",
    "get_layers_from_vllm_config": "vllm_config, layer_type, layer_names=None",
    "get_kv_cache_spec": "vllm_config, kv_cache_dtype",
    "init_attn_backend": "kv_cache_config, vllm_config, device",
    "build_attn_metadata": "attn_metadata_builders, num_reqs, num_tokens, query_start_loc, "
    "seq_lens, num_computed_tokens_cpu, block_tables, slot_mappings, kv_cache_config",
    "PerLayerParameters": "window_left, logits_soft_cap, sm_scale, has_sinks=False, "
    "has_same_window_lefts=None, has_same_all_params=None",
    "get_per_layer_parameters": "vllm_config, layer_names, cls_",
    "infer_global_hyperparameters": "per_layer_params",
    "make_kv_sharing_fast_prefill_common_attn_metadata": "common_attn_metadata",
    "create_fast_prefill_custom_backend": "prefix, underlying_attn_backend",
    "reshape_query_for_spec_decode": "query, batch_size",
    "reshape_attn_output_for_spec_decode": "attn_output",
    "compute_causal_conv1d_metadata": "query_start_loc_p",
    "is_residual_scattered_for_sp": "vllm_config, num_input_tokens",
    "scatter_mm_placeholders": "embeds, is_embed",
    "gather_mm_placeholders": "placeholders, is_embed",
    "sanity_check_mm_encoder_outputs": "mm_embeddings, expected_num_items",
    "compute_mm_encoder_budget": "scheduler_config, max_tokens_by_modality",
    "MultiModalBudget": "model_config, scheduler_config, mm_registry",
    "MultiModalBudget.get_encoder_budget": "self",
    "MultiModalBudget.get_modality_with_max_tokens": "self",
    "MultiModalBudget.get_max_items": "self, modality, max_tokens_per_item",
    "MultiModalBudget.reset_cache": "self",
}


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items())
def test_signatures(name: str, expected: str) -> None:
    """Parameters have these names, this order and these defaults."""
    signature = inspect.signature(attrgetter(name)(reference))
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    assert f"({expected})" == str(bare)


def test_sentinels() -> None:
    """The sentinels are what engines' kernels take them to be."""
    assert (-1, 0) == (reference.PAD_SLOT_ID, reference.NULL_BLOCK_ID)


def test_imports_without_torch_or_numba() -> None:
    """It works where neither torch nor numba can be imported, nor its twin nor the harness."""
    blocked = ("torch", "numba", "fast", "conformance", "hypothesis", "pytest")
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import importlib, pkgutil, reference\n"
        "for module in pkgutil.iter_modules(reference.__path__):\n"
        "    importlib.import_module(f'reference.{module.name}')\n"
        "import numpy as np\n"
        "print(reference.map_to_kernel_blocks(np.array([0, 3]), 2))\n"
    )
    root = Path(reference.__file__).parents[1]
    result = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert ("[0 1 6 7]\n", "") == (result.stdout, result.stderr)


@pytest.mark.parametrize("name", ["__init__", *MODULES])
def test_doctests(name: str) -> None:
    """The examples of every docstring give what they say."""
    module = importlib.import_module(f"reference.{name}" if name != "__init__" else "reference")
    assert doctest.testmod(module).failed == 0


def examined(name: str) -> Any:  # noqa: ANN401  # a function or a class
    """Return what a name stands for."""
    return getattr(reference, name)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in reference.__all__
        if inspect.isroutine(examined(name))
        or (inspect.isclass(examined(name)) and not name.endswith("Config"))
    ],
)
def test_docstrings_are_definitions(name: str) -> None:
    """Each public function and class has an example that runs, and says where it comes from."""
    documented = examined(name)
    assert inspect.getdoc(documented)
    assert "\n    Source: " in documented.__doc__
    (found,) = doctest.DocTestFinder(recurse=False).find(documented, name)
    assert found.examples


@pytest.mark.parametrize(
    "name", [name for name in reference.__all__ if inspect.isfunction(examined(name))]
)
def test_docstrings_name_every_argument(name: str) -> None:
    """Each parameter of a public function has its line."""
    for parameter in inspect.signature(examined(name)).parameters:
        assert f"\n        {parameter}: " in (examined(name).__doc__ or ""), parameter
