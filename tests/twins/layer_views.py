"""Specs, bytes and backends for the tests of views, and the view of one layer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import reference

FULL = reference.FullAttentionSpec(4, 5, 6, np.float16)
PAGE = FULL.page_size_bytes
STATES = reference.MambaSpec(4, ((3, 4), (2,), ()), (np.float16, np.int32, np.int8), PAGE)


def make_backend(*order: int, make_shape: Callable[..., Any] | None = None) -> SimpleNamespace:
    """Return a backend with a stride order, if one is given, that records its calls."""

    def get_kv_cache_shape(
        num_blocks: int, block_size: int, heads: int, size: int, **keywords: str
    ) -> object:
        backend.calls.append((num_blocks, block_size, heads, size, keywords))
        if make_shape is not None:
            return make_shape(num_blocks, block_size, heads, size)
        return 2, num_blocks, block_size, heads, size

    backend = SimpleNamespace(get_kv_cache_shape=get_kv_cache_shape, calls=[])
    if order:
        backend.get_kv_cache_stride_order = lambda: order
    return backend


def config(twin: Any, *groups: tuple[list[str], Any]) -> Any:
    """Return a configuration that only has groups, as nothing else is read."""
    made = [twin.KVCacheGroupSpec(layers, twin.convert(spec)) for layers, spec in groups]
    return twin.KVCacheConfig(0, [], made)


def make_raw(twin: Any, num_bytes: int) -> Any:
    """Return an int8 array of zeros."""
    return twin.convert(np.zeros(num_bytes, np.int8))


def make_view(
    twin: Any, spec: Any, raw: object, backend: object = None, kernel_block_size: int | None = None
) -> Any:
    """Return the view of one layer."""
    sizes = None if kernel_block_size is None else [kernel_block_size]
    return twin._reshape_kv_cache(config(twin, (["a"], spec)), {"a": raw}, {"a": backend}, sizes)[
        "a"
    ]
