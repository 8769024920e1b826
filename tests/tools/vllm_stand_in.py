"""A stub of vLLM 0.32: the modules, classes and signatures that the plugin uses.

Its functions return "vLLM's", so that a test sees which function ran.
"""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.vllm_metadata import CommonAttentionMetadata

ATTENTION = "vllm.v1.attention.backends.utils"
UBATCH = "vllm.v1.worker.ubatch_utils"
WORKER = "vllm.v1.worker.utils"

FUNCTIONS = {
    ATTENTION: {
        "split_decodes_and_prefills": "common_attn_metadata, decode_threshold=1,"
        " require_uniform=False, treat_short_extends_as_decodes=True",
        "split_decodes_prefills_and_extends": "common_attn_metadata, decode_threshold=1",
        "reorder_batch_to_split_decodes_and_prefills": "input_batch, scheduler_output,"
        " decode_threshold=1",
        "make_local_attention_virtual_batches": "attn_chunk_size, common_attn_metadata,"
        " block_size=0",
        "make_kv_sharing_fast_prefill_common_attn_metadata": "common_attn_metadata",
        "compute_causal_conv1d_metadata": "query_start_loc_p_cpu, *, device",
        "get_dcp_local_seq_lens": "seq_lens, dcp_size=1, dcp_rank=None,"
        " cp_kv_cache_interleave_size=1",
        "reshape_query_for_spec_decode": "query, batch_size",
        "reshape_attn_output_for_spec_decode": "attn_output",
    },
    UBATCH: {
        "maybe_create_ubatch_slices": "should_ubatch, num_scheduled_tokens, num_tokens_padded,"
        " num_reqs_padded, num_ubatches, split_point=None",
        "slice_query_start_locs": "query_start_loc, request_slice",
        "split_attn_metadata": "ubatch_slices, common_attn_metadata",
    },
    WORKER: {
        "select_common_block_size": "kv_manager_block_size, backends, kv_cache_specs=None",
        "add_kv_sharing_layers_to_kv_cache_groups": "shared_kv_cache_layers, kv_cache_groups,"
        " runner_only_attn_layers=None",
        "sanity_check_mm_encoder_outputs": "mm_embeddings, expected_num_items",
    },
    "vllm.model_executor.models.utils": {"extract_layer_index": "layer_name, num_attn_module=1"},
}
"""The parameters of vLLM 0.32's functions."""

METHODS = {
    "vllm.v1.worker.block_table": {
        "BlockTable": {
            "compute_slot_mapping": "num_reqs, query_start_loc, positions",
            "commit_block_table": "num_reqs",
        },
        "MultiGroupBlockTable": {"compute_slot_mapping": "num_reqs, query_start_loc, positions"},
    },
    "vllm.v1.worker.gpu_model_runner": {
        "GPUModelRunner": {
            "_prepare_inputs": "scheduler_output, num_scheduled_tokens",
            "_build_attention_metadata": "num_tokens, num_reqs, max_query_len,"
            " num_tokens_padded=None, num_reqs_padded=None, ubatch_slices=None,"
            " logits_indices=None, max_num_sampled_tokens=None, use_spec_decode=False,"
            " for_cudagraph_capture=False, num_scheduled_tokens=None, slot_mappings=None",
        }
    },
    "vllm.v1.attention.backends.cpu_attn": {
        "CPUAttentionMetadataBuilder": {"update_block_table": "metadata, blk_table, slot_mapping"}
    },
}
"""The parameters of its methods."""


def _function(name: str, parameters: str) -> Any:  # noqa: ANN401  # any parameters
    namespace: dict[str, Any] = {}
    exec(f'def {name}({parameters}): return "vLLM\'s"', namespace)  # noqa: S102
    return namespace[name]


def make_modules(version: str) -> dict[str, ModuleType]:
    """Make the modules of a release, by name."""
    modules: dict[str, ModuleType] = {}

    def add(name: str, **values: Any) -> ModuleType:  # noqa: ANN401  # of a module
        for parent in (name[:at] for at, letter in enumerate(name) if letter == "."):
            modules.setdefault(parent, ModuleType(parent))
        module = modules.setdefault(name, ModuleType(name))
        vars(module).update(values)
        return module

    for name, functions in FUNCTIONS.items():
        module = add(name)
        for function, parameters in functions.items():
            setattr(module, function, _function(function, parameters))
    add("vllm", __version__=version)
    add("vllm.logger", init_logger=logging.getLogger)

    for name, classes in METHODS.items():
        for class_name, methods in classes.items():
            made = type(class_name, (SimpleNamespace,), {"__hash__": object.__hash__})
            for method, parameters in methods.items():
                setattr(made, method, _function(method, f"self, {parameters}"))
            add(name, **{class_name: made})
    add("vllm.v1.attention.backend", CommonAttentionMetadata=CommonAttentionMetadata)

    # A backend that imports functions by name.
    backend = add("vllm.v1.attention.backends.flash_attn")
    backend.split = vars(modules[ATTENTION])["split_decodes_and_prefills"]  # type: ignore[attr-defined]

    class WorkerWrapperBase:
        """A worker that stores its backend's function when it is initialized."""

        def __init__(self, device_type: str = "cpu", speculative_config: object = None) -> None:
            self.vllm_config = SimpleNamespace(
                device_config=SimpleNamespace(device_type=device_type),
                speculative_config=speculative_config,
            )

        def initialize_from_config(self, kv_cache_configs: list[object]) -> None:
            del kv_cache_configs
            self.split = backend.split

    add("vllm.v1.worker.worker_base", WorkerWrapperBase=WorkerWrapperBase)
    return modules
