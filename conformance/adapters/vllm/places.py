"""The modules of vLLM that have our names. Names that are not listed are absent."""

from __future__ import annotations

import contextlib
import importlib
import operator
import sys
from typing import Any, Final

from conformance.adapters.vllm import second_runner

RELEASES: Final = ("0.32", "0.33")
"""The releases with which the adapter was tried."""

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

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "v1.attention.backend": (
        "AttentionBackend",
        "AttentionCGSupport",
        "AttentionMetadata",
        "AttentionMetadataBuilder",
        "CommonAttentionMetadata",
        "MultipleOf",
        "subclass_attention_backend",
    ),
    "v1.attention.backends.utils": (
        "KVSharingFastPrefillMetadata",
        "NULL_BLOCK_ID",
        "PAD_SLOT_ID",
        "PerLayerParameters",
        "compute_causal_conv1d_metadata",
        "create_fast_prefill_custom_backend",
        "get_dcp_local_seq_lens",
        "infer_global_hyperparameters",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "make_local_attention_virtual_batches",
        "reorder_batch_to_split_decodes_and_prefills",
        "reshape_attn_output_for_spec_decode",
        "reshape_query_for_spec_decode",
        "split_decodes_and_prefills",
        "split_decodes_prefills_and_extends",
    ),
    "v1.kv_cache_interface": (*SPECS, "KVCacheConfig", "KVCacheGroupSpec", "KVCacheTensor"),
    "v1.worker.ubatch_utils": (
        "UBatchSlice",
        "_make_metadata_with_slice",
        "slice_query_start_locs",
        "split_attn_metadata",
    ),
    "v1.worker.utils": (
        "add_kv_sharing_layers_to_kv_cache_groups",
        "bind_kv_cache",
        "prepare_kernel_block_sizes",
        "request_memory",
        "sanity_check_mm_encoder_outputs",
        "select_common_block_size",
    ),
    "v1.utils": ("CpuGpuBuffer",),
    "v1.worker.gpu.attn_utils": ("build_attn_metadata",),
    "v1.core.encoder_cache_manager": ("compute_mm_encoder_budget",),
    "v1.worker.block_table": ("BlockTable",),
    "v1.worker.block_table:BlockTable": ("compute_slot_mapping",),
    "model_executor.models.utils": ("extract_layer_index",),
}

PLACES: Final = {name: place for place, names in _NAMES.items() for name in names}
"""By our name: a module below `vllm`, with `:CLASS` if it is a method."""

OTHER_METHODS: Final = frozenset({"AttentionMetadataBuilder"})
"""Classes whose methods read more of the configuration and of devices than ours."""

OTHER_CLASSES: Final = {
    "CommonAttentionMetadata": "the class of metadata, which has other fields",
    "AttentionBackend": "the base class of backends, which has other abstract methods",
    "AttentionMetadataBuilder": "the base class of builders, which stores other attributes",
}
"""Classes that are not checked themselves, and why."""


def prepare() -> None:
    """Import all places, whose warnings would be errors later, and load the platform's kernels.

    vLLM's workers load the kernels before their first step. This reads the attributes of every
    imported module, which fails for llvmlite's.
    """
    second_runner.prepare()
    places = (*PLACES.values(), *second_runner.PLACES.values())
    for place in {place.partition(":")[0] for place in places}:
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


def find(name: str) -> Any:
    """Return the installed vLLM's object for our name, which may be `Class.method`.

    Raises:
        AttributeError: It has none.
    """
    if name in second_runner.PLACES:
        return second_runner.find(name)
    first, _, rest = name.partition(".")
    if rest and first in OTHER_METHODS:
        raise AttributeError(f"{first} of vLLM has other methods")
    place, _, cls = PLACES.get(first, "").partition(":")
    try:
        owner = importlib.import_module(f"vllm.{place}") if place else None
        found = getattr(getattr(owner, cls) if cls else owner, first)
    except (ImportError, AttributeError):
        raise AttributeError(f"vLLM has no {name}") from None
    return operator.attrgetter(rest)(found) if rest else found
