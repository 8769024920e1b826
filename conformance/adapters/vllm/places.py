"""The modules of vLLM that have our names, which move from release to release.

The first module that has a name is used. Names that are not listed are absent.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
from typing import Any, Final

SPECS: Final = (
    "KVCacheSpec",
    "AttentionSpec",
    "FullAttentionSpec",
    "MLAAttentionSpec",
    "ChunkedLocalAttentionSpec",
    "SlidingWindowSpec",
    "CrossAttentionSpec",
    "EncoderOnlyAttentionSpec",
    "MambaSpec",
    "UniformTypeKVCacheSpecs",
)
"""The kinds of spec."""

_NAMES_BY_PLACES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("v1.attention.backend", "attention.backends.abstract"): (
        "AttentionBackend",
        "AttentionMetadata",
        "MultipleOf",
    ),
    ("v1.attention.backends.utils",): (
        "KVSharingFastPrefillMetadata",
        "KVCacheLayoutType",
        "NULL_BLOCK_ID",
        "PAD_SLOT_ID",
        "PerLayerParameters",
        "compute_causal_conv1d_metadata",
        "create_fast_prefill_custom_backend",
        "get_dcp_local_seq_lens",
        "get_kv_cache_layout",
        "infer_global_hyperparameters",
        "is_valid_kv_cache_layout",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "make_local_attention_virtual_batches",
        "reorder_batch_to_split_decodes_and_prefills",
        "reshape_attn_output_for_spec_decode",
        "reshape_query_for_spec_decode",
        "set_kv_cache_layout",
        "split_decodes_and_prefills",
        "split_decodes_prefills_and_extends",
        "subclass_attention_metadata",
    ),
    ("v1.kv_cache_interface",): (*SPECS, "KVCacheConfig", "KVCacheGroupSpec", "KVCacheTensor"),
    ("v1.worker.ubatch_utils",): ("UBatchSlice", "create_ubatch_slices"),
    ("v1.worker.ubatch_utils", "v1.attention.backends.utils"): (
        "_make_metadata_with_slice",
        "slice_query_start_locs",
        "split_attn_metadata",
    ),
    ("v1.worker.utils",): (
        "add_kv_sharing_layers_to_kv_cache_groups",
        "bind_kv_cache",
        "gather_mm_placeholders",
        "is_residual_scattered_for_sp",
        "request_memory",
        "sanity_check_mm_encoder_outputs",
        "scatter_mm_placeholders",
    ),
    ("v1.utils",): ("CpuGpuBuffer",),
    ("v1.worker.gpu.attn_utils",): ("build_attn_metadata",),
    ("v1.core.encoder_cache_manager",): ("compute_mm_encoder_budget",),
    ("v1.worker.block_table",): ("BlockTable",),
    ("v1.worker.block_table:BlockTable",): ("compute_slot_mapping", "map_to_kernel_blocks"),
    ("v1.worker.utils", "v1.worker.gpu_model_runner:GPUModelRunner"): (
        "prepare_kernel_block_sizes",
        "select_common_block_size",
    ),
    ("v1.attention.backend", "v1.attention.backends.utils"): (
        "AttentionCGSupport",
        "AttentionMetadataBuilder",
        "CommonAttentionMetadata",
        "subclass_attention_backend",
    ),
    ("model_executor.models.utils",): ("extract_layer_index",),
}

PLACES: Final = {name: places for places, names in _NAMES_BY_PLACES.items() for name in names}
"""By our name: modules below `vllm`, newest release first, with `:CLASS` if it is a method."""

OTHER_METHODS: Final = frozenset({"AttentionMetadataBuilder"})
"""Classes whose methods read more of the configuration and of devices than ours."""

OTHER_BASES: Final = {
    "AttentionBackend": "the base class of backends, which has other abstract methods",
    "AttentionMetadataBuilder": "the base class of builders, which stores other attributes",
}
"""Base classes of backends and builders, and why they are not checked themselves."""


def prepare() -> None:
    """Import all places, whose warnings would be errors later, and load the platform's kernels.

    vLLM's workers load the kernels before their first step. This reads the attributes of every
    imported module, which fails for llvmlite's.
    """
    for place in {place.partition(":")[0] for places in PLACES.values() for place in places}:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"vllm.{place}")
    platform = importlib.import_module("vllm.platforms").current_platform
    hidden = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("llvmlite")}
    try:
        for name in ("import_kernels", "register_triton_kernel_overrides"):
            load = getattr(platform, name, None)  # None too, on an unknown platform
            if load is not None:
                load()
    finally:
        sys.modules.update(hidden)
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # 0.20 to 0.28: the model runner for CPUs does this
        kernels = importlib.import_module("vllm.utils.cpu_triton_utils")
        tables: Any = importlib.import_module("vllm.v1.worker.block_table")
        tables._compute_slot_mapping_kernel = kernels.compute_slot_mapping_kernel  # noqa: SLF001


def find(name: str) -> Any:
    """Return the installed vLLM's object for our name, which may be `Class.method`.

    Raises:
        AttributeError: It has none.
    """
    first, _, rest = name.partition(".")
    if rest and first in OTHER_METHODS:
        raise AttributeError(f"{first} of vLLM has other methods")
    for place in PLACES.get(first, ()):
        module, _, cls = place.partition(":")
        try:
            owner = importlib.import_module(f"vllm.{module}")
            found = getattr(getattr(owner, cls) if cls else owner, first)
        except (ImportError, AttributeError):
            continue
        return operator.attrgetter(rest)(found) if rest else found
    raise AttributeError(f"vLLM has no {name}")
