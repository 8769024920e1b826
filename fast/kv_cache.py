"""The KV cache: allocated, viewed by layer, and bound to the layers."""

from typing import Any

import torch

from fast._checks import check_device, check_int, check_list, check_type
from fast.kv_binding import bind_kv_cache, extract_layer_index, order_layers
from fast.kv_cache_spec import KVCacheConfig
from fast.kv_cached_layers import find_cached_groups
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
    """Allocate the raw tensors of a model's KV cache, zeroed.

    Args:
        kv_cache_config: its `kv_cache_tensors` and `kv_cache_groups` are read, which must name the
            same layers, each once. Encoder-only groups keep no cache and count as empty.
        device: where to allocate.

    Returns:
        int8[size] for each layer, in the order of the tensors and their `shared_by`; one object
        for all layers that share it.

    Raises:
        TypeError: an argument, a size or a list of names of another type.
        ValueError: a negative size, or a layer that is missing, extra or named twice.
        AttributeError: an object without what is read.

    Example:
        >>> from fast.kv_cache_spec import KVCacheGroupSpec, KVCacheSpec, KVCacheTensor
        >>> groups = [KVCacheGroupSpec([f"layers.{i}"], KVCacheSpec(16)) for i in (0, 1)]
        >>> tensor = KVCacheTensor(size=4, shared_by=["layers.0", "layers.1"])
        >>> raw_tensors = _allocate_kv_cache(KVCacheConfig(1, [tensor], groups), "cpu")
        >>> raw_tensors["layers.1"], raw_tensors["layers.0"] is raw_tensors["layers.1"]
        (tensor([0, 0, 0, 0], dtype=torch.int8), True)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    device = check_device("device", device)
    check_list("kv_cache_config.kv_cache_tensors", kv_cache_config.kv_cache_tensors)
    needed = [name for group in find_cached_groups(kv_cache_config) for name in group.layer_names]
    sizes: list[int] = []
    layer_tensors: dict[str, int] = {}
    for t, tensor in enumerate(kv_cache_config.kv_cache_tensors):
        sizes.append(check_int(f"kv_cache_tensors[{t}].size", tensor.size, 0, 2**63 - 1))
        check_list(f"kv_cache_tensors[{t}].shared_by", tensor.shared_by)
        for i, name in enumerate(tensor.shared_by):
            where = f"kv_cache_tensors[{t}].shared_by[{i}]"
            check_type(where, name, str, "a str")
            if name in layer_tensors:
                raise ValueError(f"{where} is {name!r}, a layer that is named before")
            layer_tensors[name] = t
    missing, extra = set(needed) - set(layer_tensors), set(layer_tensors) - set(needed)
    if missing or extra:
        raise ValueError(
            f"kv_cache_tensors must name the layers of kv_cache_groups, missing {sorted(missing)}, "
            f"extra {sorted(extra)}"
        )
    with torch.inference_mode(mode=False):  # a cache outlives the mode in which it is made
        tensors = [torch.zeros(size, dtype=torch.int8, device=device) for size in sizes]
    return {name: tensors[t] for name, t in layer_tensors.items()}


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
    """Allocate a model's KV cache, view it as its backends say, and bind it to its layers.

    Args:
        runner_kv_caches: an empty list, filled in ascending layer index.
        forward_context: each layer, by name; its `kv_cache` becomes a list of its cache alone.
        kv_cache_config: what to allocate, and for which layers.
        attn_backends: each attention layer's backend.
        device: where to allocate.
        kernel_block_sizes: for each group that is not encoder-only, positions in a block of its
            kernels; None: those of its spec.
        num_attn_module: attention modules in a layer; None is 1.

    Raises:
        TypeError, ValueError, KeyError, NotImplementedError, AttributeError: as allocation, views
            and binding do. After an error nothing is bound.

    Example:
        >>> from types import SimpleNamespace as Layer
        >>> from fast.kv_cache_spec import KVCacheGroupSpec, KVCacheTensor, MambaSpec
        >>> group = KVCacheGroupSpec(["layers.0.mixer"], MambaSpec(16, ((2,),), (torch.float32,)))
        >>> config = KVCacheConfig(3, [KVCacheTensor(24, ["layers.0.mixer"])], [group])
        >>> layers, runner_kv_caches = {"layers.0.mixer": Layer()}, []
        >>> init_kv_cache(runner_kv_caches, layers, config, {}, "cpu")
        >>> layers["layers.0.mixer"].kv_cache[0] is runner_kv_caches[0]
        True
        >>> runner_kv_caches[0][0].shape
        torch.Size([3, 2])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    names = [name for group in find_cached_groups(kv_cache_config) for name in group.layer_names]
    order_layers(names, forward_context, runner_kv_caches, num_attn_module)
    raw_tensors = _allocate_kv_cache(kv_cache_config, device)
    kv_caches = _reshape_kv_cache(kv_cache_config, raw_tensors, attn_backends, kernel_block_sizes)
    bind_kv_cache(kv_caches, forward_context, runner_kv_caches, num_attn_module)
