"""View the KV cache of each layer with the shape and strides that its backend expects."""

import math
from typing import Any

import torch

from fast._checks import check_dtype, check_int, check_type, get_dtype_name, is_kind
from fast._native.memory import check_memory
from fast.kv_cache_spec import KVCacheConfig, find_inner_specs
from fast.kv_cached_layers import CachedLayer, find_layers


def _reshape_kv_cache(
    kv_cache_config: KVCacheConfig,
    kv_cache_raw_tensors: dict[str, torch.Tensor],
    attn_backends: dict[str, Any],
    kernel_block_sizes: list[int] | None = None,
) -> dict[str, Any]:
    """View the memory of each layer as its backend expects it.

    Definition: `reference._reshape_kv_cache`.
    """
    check_type("kv_cache_raw_tensors", kv_cache_raw_tensors, dict, "a dict")
    check_type("attn_backends", attn_backends, dict, "a dict")
    layers = find_layers(kv_cache_config, kv_cache_raw_tensors, kernel_block_sizes)
    pages_are_blocks = any(
        is_kind(spec, "MambaSpec")
        for group in kv_cache_config.kv_cache_groups
        for spec in find_inner_specs(group.kv_cache_spec)
    )
    views: dict[str, Any] = {}
    for layer in layers:
        if is_kind(layer.spec, "AttentionSpec"):
            if layer.name not in attn_backends:
                raise KeyError(f"attn_backends lacks layer {layer.name!r}")
            views[layer.name] = _view_attention(layer, attn_backends[layer.name], pages_are_blocks)
        else:
            views[layer.name] = _view_states(layer)
    return views


def _view_attention(layer: CachedLayer, backend: Any, pages_are_blocks: bool) -> torch.Tensor:
    """Return the view of an attention layer.

    With `pages_are_blocks` the block dimension is outermost in memory, whatever the stride order.
    """
    spec = layer.spec
    block_size = spec.block_size if layer.kernel_block_size is None else layer.kernel_block_size
    if spec.block_size % block_size:
        raise ValueError(
            f"kernel_block_sizes has {block_size} for layer {layer.name!r}, expected a divisor of "
            f"its block_size {spec.block_size}"
        )
    num_blocks = layer.num_blocks * (spec.block_size // block_size)
    shape = _get_cache_shape(layer, backend, num_blocks, block_size)
    order = _get_stride_order(layer, backend, len(shape))
    if pages_are_blocks:
        larger = _get_cache_shape(layer, backend, num_blocks + 1, block_size)
        blocks = _find_block_dimension(layer, shape, larger)
        order = [blocks, *(dimension for dimension in order if dimension != blocks)]
    dtype = check_dtype(f"dtype of layer {layer.name!r}", spec.dtype)
    if math.prod(shape) * dtype.itemsize != layer.raw.numel():
        raise ValueError(
            f"attn_backends[{layer.name!r}].get_kv_cache_shape() is {tuple(shape)} of "
            f"{get_dtype_name(dtype)}, {math.prod(shape) * dtype.itemsize} bytes, but "
            f"kv_cache_raw_tensors[{layer.name!r}] has {layer.raw.numel()}"
        )
    strides = [0] * len(shape)
    step = 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return _view_bytes(layer, dtype, shape, strides, 0)


def _view_states(layer: CachedLayer) -> list[torch.Tensor]:
    """Return the views of a Mamba layer: its states follow one another in each page."""
    views = []
    offset, page_size = 0, layer.page_size_bytes
    shapes, dtypes = layer.spec.shapes, layer.spec.dtypes
    if len(shapes) != len(dtypes):
        raise ValueError(
            f"dtypes of layer {layer.name!r} has {len(dtypes)} entries, expected {len(shapes)}, as "
            "many as shapes"
        )
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        check_dtype(f"dtypes[{i}] of layer {layer.name!r}", dtype)
        if offset % dtype.itemsize or page_size % dtype.itemsize:
            raise ValueError(
                f"state {i} of layer {layer.name!r} is at byte {offset} of pages of {page_size} "
                f"bytes, expected multiples of {dtype.itemsize}, the itemsize of "
                f"{get_dtype_name(dtype)}"
            )
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        strides = [page_size // dtype.itemsize, *strides]
        start, offset = offset, offset + math.prod(shape) * dtype.itemsize
        if offset > page_size:
            raise ValueError(
                f"state {i} of layer {layer.name!r} ends at byte {offset}, past its "
                f"page_size_bytes {page_size}"
            )
        views.append(_view_bytes(layer, dtype, [layer.num_blocks, *shape], strides, start))
    return views


def _view_bytes(
    layer: CachedLayer, dtype: torch.dtype, shape: list[int], strides: list[int], offset: int
) -> torch.Tensor:
    """Return a view of a raw tensor from the byte `offset` on; `strides` are in items."""
    raw, itemsize = layer.raw, dtype.itemsize
    if not raw.is_meta:  # whose views have no memory either
        check_memory(f"kv_cache_raw_tensors[{layer.name!r}]", raw)
    if raw.is_neg():
        raise ValueError(f"kv_cache_raw_tensors[{layer.name!r}] is a lazy negation, not memory")
    begin = raw.storage_offset()
    address = raw.untyped_storage().data_ptr() + begin
    if raw.numel() > 0 and (begin % itemsize or address % itemsize):
        raise ValueError(
            f"kv_cache_raw_tensors[{layer.name!r}] is not aligned for {get_dtype_name(dtype)}, "
            f"expected an address that is a multiple of {itemsize}"
        )
    with torch.inference_mode(mode=False):  # a view too outlives the mode in which it is made
        # An empty view may have any offset and strides; `view` needs the stride 1 and whole items.
        numbers = raw.as_strided((raw.numel(),), (1,), begin - begin % itemsize).view(dtype)
        return numbers.as_strided(shape, strides, (begin + offset) // itemsize)


def _get_cache_shape(
    layer: CachedLayer, backend: Any, num_blocks: int, block_size: int
) -> list[int]:
    spec = layer.spec
    cache_dtype_str = getattr(spec, "cache_dtype_str", None)
    keywords = {} if cache_dtype_str is None else {"cache_dtype_str": cache_dtype_str}
    shape = backend.get_kv_cache_shape(
        num_blocks, block_size, spec.num_kv_heads, spec.head_size, **keywords
    )
    name = f"attn_backends[{layer.name!r}].get_kv_cache_shape()"
    check_type(name, shape, list | tuple, "a list or tuple")
    return [check_int(f"{name}[{d}]", length, 0, None) for d, length in enumerate(shape)]


def _get_stride_order(layer: CachedLayer, backend: Any, ndim: int) -> list[int]:
    """Return a backend's dimensions in the order of memory, outermost first."""
    ask = getattr(backend, "get_kv_cache_stride_order", None)
    identity = list(range(ndim))
    if ask is None:
        return identity
    try:
        order = ask()
    except NotImplementedError:
        return identity
    name = f"attn_backends[{layer.name!r}].get_kv_cache_stride_order()"
    check_type(name, order, list | tuple, "a list or tuple")
    order = [check_int(f"{name}[{i}]", d, 0, ndim - 1) for i, d in enumerate(order)]
    if sorted(order) != identity:
        raise ValueError(f"{name} is {order}, expected a permutation of {identity}")
    return order


def _find_block_dimension(layer: CachedLayer, shape: list[int], larger: list[int]) -> int:
    """Return the dimension that is larger with one more block."""
    grown = [
        d for d, (before, after) in enumerate(zip(shape, larger, strict=False)) if after > before
    ]
    if len(shape) != len(larger) or len(grown) != 1:
        raise ValueError(
            f"attn_backends[{layer.name!r}].get_kv_cache_shape() is {tuple(shape)}, and "
            f"{tuple(larger)} for one more block, expected one dimension to grow"
        )
    return grown[0]
