"""Allocate the KV cache, view it by layer, and bind it to the layers."""

from typing import Any

import torch

from fast._checks import MAX_INT64, check_device, check_int, check_list
from fast.kv_binding import bind_kv_cache, extract_layer_index, order_layers
from fast.kv_cache_spec import KVCacheConfig
from fast.kv_cached_layers import add_names, find_cached_groups
from fast.kv_sharing import (
    add_kv_sharing_layers_to_kv_cache_groups,
    initialize_kv_cache_for_kv_sharing,
)
from fast.kv_views import _reshape_kv_cache

__all__ = [
    "_allocate_kv_cache",
    "_reshape_kv_cache",
    "add_kv_sharing_layers_to_kv_cache_groups",
    "bind_kv_cache",
    "extract_layer_index",
    "init_kv_cache",
    "initialize_kv_cache_for_kv_sharing",
]


def _allocate_kv_cache(
    kv_cache_config: KVCacheConfig, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """Allocate the memory of the KV cache on a device.

    Definition: `reference._allocate_kv_cache`.
    """
    device = check_device("device", device)
    check_list("kv_cache_config.kv_cache_tensors", kv_cache_config.kv_cache_tensors)
    groups = find_cached_groups(kv_cache_config)
    needed = {name for group in groups for name in group.layer_names}
    sizes: list[int] = []
    found: set[str] = set()
    for t, tensor in enumerate(kv_cache_config.kv_cache_tensors):
        sizes.append(check_int(f"kv_cache_tensors[{t}].size", tensor.size, 0, MAX_INT64))
        add_names(f"kv_cache_tensors[{t}].shared_by", tensor.shared_by, found)
    missing, extra = needed - found, found - needed
    if missing or extra:
        raise ValueError(
            f"kv_cache_tensors must name the layers of kv_cache_groups, missing {sorted(missing)}, "
            f"extra {sorted(extra)}"
        )
    with torch.inference_mode(mode=False):  # a cache outlives the mode in which it is made
        tensors = [torch.zeros(size, dtype=torch.int8, device=device) for size in sizes]
    shared = zip(kv_cache_config.kv_cache_tensors, tensors, strict=True)
    return {name: memory for tensor, memory in shared for name in tensor.shared_by}


def init_kv_cache(
    runner_kv_caches: list[Any],
    forward_context: dict[str, Any],
    kv_cache_config: KVCacheConfig,
    attn_backends: dict[str, Any],
    device: torch.device | str,
    *,
    kernel_block_sizes: list[int] | None = None,
    num_attn_module: int | None = 1,
) -> None:
    """Allocate the KV cache of a model on a device, view it and bind it.

    Definition: `reference.init_kv_cache`.
    """
    names = [name for group in find_cached_groups(kv_cache_config) for name in group.layer_names]
    order_layers(names, forward_context, runner_kv_caches, num_attn_module)
    raw_tensors = _allocate_kv_cache(kv_cache_config, device)
    kv_caches = _reshape_kv_cache(kv_cache_config, raw_tensors, attn_backends, kernel_block_sizes)
    bind_kv_cache(kv_caches, forward_context, runner_kv_caches, num_attn_module)
