"""Views of the raw bytes of a layer's cache: for attention backends and for Mamba states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from reference._checks import Array, check_dtype, check_int, check_type
from reference.kv_cache_spec import AttentionSpec, KVCacheSpec, MambaSpec


def make_attention_view(
    layer_name: str,
    raw: Array,
    spec: AttentionSpec,
    backend: Any,
    kernel_block_size: int,
    *,
    blocks_first: bool,
) -> Array:
    """Return the view of a layer's bytes that its backend expects.

    The backend gives the *logical* shape, for as many kernel blocks as the bytes hold, and the
    *physical* order of the dimensions, outermost first. With `blocks_first` the dimension of the
    blocks is moved to the front of that order.
    """
    name = f"kv_cache_raw_tensors[{layer_name!r}]"
    num_blocks = count_blocks(name, raw, spec)
    if spec.block_size % kernel_block_size != 0:
        raise ValueError(
            f"kernel_block_sizes has {kernel_block_size} for layer {layer_name!r}, "
            f"expected a divisor of its block_size {spec.block_size}"
        )
    num_kernel_blocks = num_blocks * (spec.block_size // kernel_block_size)
    shape = _get_cache_shape(layer_name, backend, num_kernel_blocks, kernel_block_size, spec)
    order = _get_stride_order(layer_name, backend, len(shape))
    if blocks_first:
        larger = _get_cache_shape(
            layer_name, backend, num_kernel_blocks + 1, kernel_block_size, spec
        )
        block_dimension = _find_block_dimension(layer_name, shape, larger)
        order.remove(block_dimension)
        order.insert(0, block_dimension)

    dtype = check_dtype(f"dtype of layer {layer_name!r}", spec.dtype)
    if math.prod(shape) * dtype.itemsize != raw.nbytes:
        raise ValueError(
            f"attn_backends[{layer_name!r}].get_kv_cache_shape() is {shape} of {dtype.name}, "
            f"{math.prod(shape) * dtype.itemsize} bytes, but {name} has {raw.nbytes}"
        )
    _check_alignment(name, raw, dtype)
    return np.ndarray(shape, dtype, buffer=raw, strides=_make_strides(shape, order, dtype))


def make_state_views(layer_name: str, raw: Array, spec: MambaSpec) -> list[Array]:
    """Return a view of each state of a Mamba layer: `(num_blocks, *shape)`.

    The states follow one another in each page, so blocks are a page apart.
    """
    name = f"kv_cache_raw_tensors[{layer_name!r}]"
    num_blocks = count_blocks(name, raw, spec)
    page_size = int(spec.page_size_bytes)
    if len(spec.shapes) != len(spec.dtypes):
        raise ValueError(
            f"dtypes of layer {layer_name!r} has {len(spec.dtypes)} entries, expected "
            f"{len(spec.shapes)}, as many as shapes"
        )
    views = []
    offset = 0
    for i, (shape, state_dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True)):
        dtype = check_dtype(f"dtypes[{i}] of layer {layer_name!r}", state_dtype)
        if offset % dtype.itemsize != 0 or page_size % dtype.itemsize != 0:
            raise ValueError(
                f"state {i} of layer {layer_name!r} is at byte {offset} of pages of {page_size} "
                f"bytes, expected multiples of {dtype.itemsize}, the itemsize of {dtype.name}"
            )
        state_bytes = math.prod(shape) * dtype.itemsize
        if offset + state_bytes > page_size:
            raise ValueError(
                f"state {i} of layer {layer_name!r} ends at byte {offset + state_bytes}, past its "
                f"page_size_bytes {page_size}"
            )
        _check_alignment(name, raw, dtype)
        strides = (page_size, *_make_strides(shape, list(range(len(shape))), dtype))
        buffer = raw[offset:]
        views.append(np.ndarray((num_blocks, *shape), dtype, buffer=buffer, strides=strides))
        offset += state_bytes
    return views


def check_page_size(layer_name: str, spec: KVCacheSpec) -> int:
    """Return the bytes of a layer's page, at least 1."""
    return check_int(f"page_size_bytes of layer {layer_name!r}", spec.page_size_bytes, 1)


def count_blocks(name: str, raw: Array, spec: KVCacheSpec) -> int:
    """Return how many pages of a spec the bytes hold; they must be whole pages."""
    page_size = int(spec.page_size_bytes)
    if raw.nbytes % page_size != 0:
        raise ValueError(
            f"{name} has {raw.nbytes} bytes, expected a multiple of its page_size_bytes {page_size}"
        )
    return raw.nbytes // page_size


def _get_cache_shape(
    layer_name: str, backend: Any, num_blocks: int, block_size: int, spec: AttentionSpec
) -> tuple[int, ...]:
    """Return the logical shape that a backend gives."""
    arguments = {}
    cache_dtype_str = getattr(spec, "cache_dtype_str", None)
    if cache_dtype_str is not None:
        arguments["cache_dtype_str"] = cache_dtype_str
    shape = backend.get_kv_cache_shape(
        num_blocks, block_size, spec.num_kv_heads, spec.head_size, **arguments
    )
    name = f"attn_backends[{layer_name!r}].get_kv_cache_shape()"
    lengths = enumerate(check_type(name, shape, list | tuple))
    return tuple(check_int(f"{name}[{i}]", length, 0) for i, length in lengths)


def _get_stride_order(layer_name: str, backend: Any, num_dimensions: int) -> list[int]:
    """Return the dimensions in the order of memory, outermost first; by default the identity."""
    identity = list(range(num_dimensions))
    get_kv_cache_stride_order = getattr(backend, "get_kv_cache_stride_order", None)
    if get_kv_cache_stride_order is None:
        return identity
    try:
        order = get_kv_cache_stride_order()
    except NotImplementedError:
        return identity
    name = f"attn_backends[{layer_name!r}].get_kv_cache_stride_order()"
    dimensions = [
        check_int(f"{name}[{i}]", dimension, 0, num_dimensions - 1)
        for i, dimension in enumerate(check_type(name, order, list | tuple))
    ]
    if sorted(dimensions) != identity:
        raise ValueError(f"{name} is {dimensions}, expected a permutation of {identity}")
    return dimensions


def _find_block_dimension(layer_name: str, shape: tuple[int, ...], larger: tuple[int, ...]) -> int:
    """Return the dimension that grows by one more block."""
    grown = [d for d in range(min(len(shape), len(larger))) if larger[d] > shape[d]]
    if len(shape) != len(larger) or len(grown) != 1:
        raise ValueError(
            f"attn_backends[{layer_name!r}].get_kv_cache_shape() is {shape}, and {larger} for one "
            "more block, expected one dimension to grow"
        )
    return grown[0]


def _make_strides(
    shape: tuple[int, ...], order: list[int], dtype: np.dtype[Any]
) -> tuple[int, ...]:
    """Return the strides in bytes of dimensions that memory holds in `order`, outermost first.

    A length of 0 counts as 1, as in NumPy and torch.
    """
    strides = {}
    stride = dtype.itemsize
    for dimension in reversed(order):
        strides[dimension] = stride
        stride *= max(shape[dimension], 1)
    return tuple(strides[dimension] for dimension in range(len(shape)))


def _check_alignment(name: str, raw: Array, dtype: np.dtype[Any]) -> None:
    """Check that the address of an array's bytes, if any, is a multiple of the itemsize."""
    if raw.size and raw.ctypes.data % dtype.itemsize != 0:
        raise ValueError(
            f"{name} is not aligned for {dtype.name}, expected an address that is a multiple of "
            f"{dtype.itemsize}"
        )
