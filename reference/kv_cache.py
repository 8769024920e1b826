"""The KV cache of a model: allocated, viewed by layer, and bound to the layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from reference._checks import (
    MAX_INT64,
    Array,
    check_array,
    check_int,
    check_ints,
    check_list,
    check_strs,
    check_type,
    is_kind,
)
from reference.kv_binding import bind_kv_cache, extract_layer_index, order_layers
from reference.kv_cache_spec import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    get_cached_groups,
    get_inner_specs,
)
from reference.kv_sharing import (
    add_kv_sharing_layers_to_kv_cache_groups,
    initialize_kv_cache_for_kv_sharing,
)
from reference.kv_views import check_page_size, make_attention_view, make_state_views

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
    kv_cache_config: KVCacheConfig,
    device: object,  # noqa: ARG001  # the twins have the same parameters
) -> dict[str, Array]:
    """Allocate the memory of the KV cache.

    Encoder-only groups keep no cache, and their layers are ignored; a uniform group is of the kind
    of its first inner spec. The number of blocks is not read.

    Args:
        kv_cache_config: The KV cache. The `size` of a tensor is in bytes, at least 0; its
            `shared_by` may be empty.
        device: Ignored, since `reference` has no devices.

    Returns:
        For each layer a zeroed int8[size], in the order of the tensors and their `shared_by`. All
        layers that share a tensor have the same array.

    Raises:
        AttributeError: A configuration that lacks an attribute that is read.
        TypeError: A size that is not an int, layers that are not a list of strs.
        ValueError: A size outside 0 .. 2**63 - 1, a layer that is in two tensors or in two groups,
            or in a tensor but no group, or in a group but no tensor. After an error nothing is
            allocated.

    Example:
        >>> from reference.kv_cache_spec import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
        >>> from reference.kv_cache_spec import KVCacheTensor
        >>> layers = ["layers.0.attn", "layers.1.attn"]
        >>> groups = [KVCacheGroupSpec(layers, KVCacheSpec(16))]
        >>> config = KVCacheConfig(8, [KVCacheTensor(4096, layers)], groups)
        >>> raw_tensors = _allocate_kv_cache(config, device=None)
        >>> raw_tensors["layers.0.attn"] is raw_tensors["layers.1.attn"]
        True

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    tensors = check_list("kv_cache_config.kv_cache_tensors", kv_cache_config.kv_cache_tensors)
    grouped = [name for group in get_cached_groups(kv_cache_config) for name in group.layer_names]
    placed: set[str] = set()
    for i, tensor in enumerate(tensors):
        check_int(f"kv_cache_tensors[{i}].size", tensor.size, 0, MAX_INT64)
        name = f"kv_cache_tensors[{i}].shared_by"
        for j, layer_name in enumerate(check_strs(name, tensor.shared_by)):
            if layer_name in placed:
                raise ValueError(f"{name}[{j}] is {layer_name!r}, a layer that is named before")
            placed.add(layer_name)
    missing, extra = sorted(set(grouped) - placed), sorted(placed - set(grouped))
    if missing or extra:
        raise ValueError(
            f"kv_cache_tensors must name the layers of kv_cache_groups, missing {missing}, "
            f"extra {extra}"
        )

    raw_tensors = {}
    for tensor in tensors:
        raw = np.zeros(int(tensor.size), dtype=np.int8)
        for layer_name in tensor.shared_by:
            raw_tensors[layer_name] = raw
    return raw_tensors


def _reshape_kv_cache(
    kv_cache_config: KVCacheConfig,
    kv_cache_raw_tensors: dict[str, Array],
    attn_backends: dict[str, Any],
    kernel_block_sizes: list[int] | None = None,
) -> dict[str, Array | list[Array]]:
    """View the memory of each layer as its backend expects it.

    The bytes of a layer must be whole pages of its spec, which gives the number of blocks. The
    backend gives the logical shape,
    `get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size)` (with `cache_dtype_str` if
    the spec has one), and the order in which memory holds its dimensions, outermost first,
    `get_kv_cache_stride_order()`. If that method is missing, is None, or raises
    `NotImplementedError`, the order is that of the shape.

    With kernel block sizes, the shape is that of blocks of that size, several of which make one
    block of the spec. In a configuration with a Mamba layer, the dimension of the blocks (the one
    that grows when the backend is called with one more block) is moved to the front of the order,
    so that every block fills its own page.

    In a `UniformTypeKVCacheSpecs` each layer has its own spec; a layer without one gets that of the
    first layer of its group with a spec and the same array. Encoder-only groups are skipped.

    Args:
        kv_cache_config: The KV cache; its groups are read.
        kv_cache_raw_tensors: int8[bytes] of each layer, contiguous; others are ignored.
        attn_backends: The backend of each layer, a class or an instance; Mamba layers need none.
        kernel_block_sizes: The size for each group that is not encoder-only, at least 1; that of a
            Mamba group is not used. None: the specs' own.

    Returns:
        For each layer, in the order of groups and their layers, a view of its array with the spec's
        dtype, the logical shape and the strides of memory. For a Mamba layer, a list with a view of
        each state, `(num_blocks, *shape)`; the states follow one another in each page.

    Raises:
        AttributeError: An object that lacks an attribute that is read.
        KeyError: A layer without an array, a backend or a spec.
        NotImplementedError: A spec that is neither attention nor Mamba.
        TypeError: An argument, a shape or a stride order of the wrong type or dtype.
        ValueError: An array with another number of dimensions, not contiguous, or at an address
            that is not a multiple of the itemsize; bytes that are not whole pages, or not those of
            the shape; a stride order that is not a permutation; different page sizes over one
            array; too few or too many kernel block sizes, or one that does not divide the spec's;
            no unique dimension of the blocks; a state whose offset, or a page whose size, is not a
            multiple of the state's itemsize; a layer in two groups.

    Example:
        >>> import numpy as np
        >>> from reference.kv_cache_spec import AttentionSpec, KVCacheConfig, KVCacheGroupSpec
        >>> class Backend:
        ...     @staticmethod
        ...     def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size):
        ...         return 2, num_blocks, block_size, num_kv_heads, head_size
        ...
        ...     @staticmethod
        ...     def get_kv_cache_stride_order():
        ...         return 1, 3, 0, 2, 4
        >>> groups = [KVCacheGroupSpec(["layers.0.attn"], AttentionSpec(4, 5, 6, np.int8))]
        >>> raw_tensors = {"layers.0.attn": np.zeros(3 * 2 * 4 * 5 * 6, np.int8)}
        >>> backends = {"layers.0.attn": Backend}
        >>> view = _reshape_kv_cache(KVCacheConfig(3, [], groups), raw_tensors, backends)
        >>> view["layers.0.attn"].shape, view["layers.0.attn"].strides
        ((2, 3, 4, 5, 6), (24, 240, 6, 48, 1))

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("kv_cache_raw_tensors", kv_cache_raw_tensors, dict)
    check_type("attn_backends", attn_backends, dict)
    groups = get_cached_groups(kv_cache_config)
    if kernel_block_sizes is not None:
        check_list("kernel_block_sizes", kernel_block_sizes, len(groups))
        kernel_block_sizes = check_ints("kernel_block_sizes", kernel_block_sizes, 1)
    has_mamba = any(_has_mamba(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups)
    first_over: dict[int, tuple[str, int]] = {}  # by array: the first layer, its page size

    kv_caches: dict[str, Array | list[Array]] = {}
    for g, group in enumerate(groups):
        raws = {name: _check_raw_tensor(name, kv_cache_raw_tensors) for name in group.layer_names}
        specs_over = _get_specs_over(group, raws)
        for layer_name, raw in raws.items():
            spec = _get_layer_spec(layer_name, group, specs_over.get(id(raw)))
            page_size = check_page_size(layer_name, spec)
            first_layer, first_size = first_over.setdefault(id(raw), (layer_name, page_size))
            if page_size != first_size:
                raise ValueError(
                    f"page_size_bytes of layer {layer_name!r} is {page_size}, but that of "
                    f"{first_layer!r} with the same raw tensor is {first_size}"
                )
            if is_kind(spec, "MambaSpec"):
                kv_caches[layer_name] = make_state_views(layer_name, raw, spec)
                continue
            if layer_name not in attn_backends:
                raise KeyError(f"attn_backends lacks layer {layer_name!r}")
            kv_caches[layer_name] = make_attention_view(
                layer_name,
                raw,
                spec,
                attn_backends[layer_name],
                spec.block_size if kernel_block_sizes is None else kernel_block_sizes[g],
                blocks_first=has_mamba,
            )
    return kv_caches


def _has_mamba(spec: KVCacheSpec) -> bool:
    """Return whether a group's spec, or one of its inner specs, is Mamba."""
    if is_kind(spec, "UniformTypeKVCacheSpecs"):
        return any(is_kind(inner, "MambaSpec") for inner in get_inner_specs(spec).values())
    return is_kind(spec, "MambaSpec")


def _check_raw_tensor(layer_name: str, kv_cache_raw_tensors: dict[str, Array]) -> Array:
    """Return the bytes of a layer."""
    if layer_name not in kv_cache_raw_tensors:
        raise KeyError(f"kv_cache_raw_tensors lacks layer {layer_name!r}")
    name = f"kv_cache_raw_tensors[{layer_name!r}]"
    raw = check_array(name, kv_cache_raw_tensors[layer_name], np.int8, ndim=1)
    if not raw.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous, got stride {raw.strides[0]}")
    return raw


def _get_specs_over(group: KVCacheGroupSpec, raws: dict[str, Array]) -> dict[int, KVCacheSpec]:
    """Return, by array, the spec of the first layer of a uniform group that has one."""
    specs: dict[int, KVCacheSpec] = {}
    if is_kind(group.kv_cache_spec, "UniformTypeKVCacheSpecs"):
        inner_specs = get_inner_specs(group.kv_cache_spec)
        for layer_name, raw in raws.items():
            if layer_name in inner_specs:
                specs.setdefault(id(raw), inner_specs[layer_name])
    return specs


def _get_layer_spec(layer_name: str, group: KVCacheGroupSpec, spec_over: KVCacheSpec | None) -> Any:
    """Return the spec of a layer, attention or Mamba; `spec_over` is that over its array."""
    spec: Any = group.kv_cache_spec
    if is_kind(spec, "UniformTypeKVCacheSpecs"):
        spec = spec.kv_cache_specs.get(layer_name, spec_over)
        if spec is None:
            raise KeyError(
                f"kv_cache_specs lacks layer {layer_name!r} and every layer of its group with the "
                "same raw tensor"
            )
    if not is_kind(spec, "AttentionSpec", "MambaSpec"):
        raise NotImplementedError(
            f"layer {layer_name!r} has a spec of class {type(spec).__name__}, "
            "expected AttentionSpec or MambaSpec"
        )
    return spec


def init_kv_cache(
    runner_kv_caches: list[Any],
    forward_context: dict[str, Any],
    kv_cache_config: KVCacheConfig,
    attn_backends: dict[str, Any],
    device: object,
    *,
    kernel_block_sizes: list[int] | None = None,
    num_attn_module: int | None = 1,
) -> None:
    """Allocate the KV cache of a model, view it and bind it.

    Calls `_allocate_kv_cache`, `_reshape_kv_cache` and `bind_kv_cache`, in this order.

    Args:
        runner_kv_caches: An empty list, which is filled with the caches in the order of the layers.
        forward_context: The layers by name; each gets its cache.
        kv_cache_config: The KV cache.
        attn_backends: The backend of each layer; Mamba layers need none.
        device: Ignored, since `reference` has no devices.
        kernel_block_sizes: As `prepare_kernel_block_sizes` returns them; None: the specs' own.
        num_attn_module: Attention modules in a layer, at least 1; None: 1.

    Raises:
        AttributeError: As these three.
        KeyError: As these three.
        NotImplementedError: As these three.
        TypeError: As these three.
        ValueError: As these three. After an error nothing is bound; the arguments of
            `bind_kv_cache` are checked before anything is allocated.

    Example:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> from reference.kv_cache_spec import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
        >>> from reference.kv_cache_spec import MambaSpec
        >>> layer, runner_kv_caches = SimpleNamespace(), []
        >>> groups = [KVCacheGroupSpec(["0.mixer"], MambaSpec(16, ((4, 8),), (np.int8,)))]
        >>> config = KVCacheConfig(3, [KVCacheTensor(96, ["0.mixer"])], groups)
        >>> init_kv_cache(runner_kv_caches, {"0.mixer": layer}, config, {}, device=None)
        >>> [state.shape for state in runner_kv_caches[0]]
        [(3, 4, 8)]

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    groups = get_cached_groups(kv_cache_config)
    layer_names = [layer_name for group in groups for layer_name in group.layer_names]
    order_layers(layer_names, forward_context, runner_kv_caches, num_attn_module)
    raw_tensors = _allocate_kv_cache(kv_cache_config, device)
    kv_caches = _reshape_kv_cache(kv_cache_config, raw_tensors, attn_backends, kernel_block_sizes)
    bind_kv_cache(kv_caches, forward_context, runner_kv_caches, num_attn_module)
