"""Calls of `_reshape_kv_cache`, over raw tensors between guard bands."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.arrays.guard_bands import Array, poisoned
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.kv_binding import shuffled
from conformance.strategies.kv_cache import Cache, caches
from conformance.values.call import Arguments, Call

GUARD_BYTES = 64
"""Bytes of a guard band: enough to keep the data after it aligned for every dtype."""


def raw_bytes(size: int, seed: int) -> Array:
    """Return random bytes between guard bands.

    >>> raw = raw_bytes(3, seed=0)
    >>> raw.dtype, raw.shape, raw.base.shape
    (dtype('int8'), (3,), (131,))
    """
    memory = poisoned((size + 2 * GUARD_BYTES,), np.int8)
    raw = memory[GUARD_BYTES : GUARD_BYTES + size]
    raw[:] = np.random.default_rng(seed).integers(-128, 128, size, dtype=np.int8)
    return raw


@st.composite
def reshape_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_reshape_kv_cache`; the source is the cache."""
    cache: Cache = draw(caches(preset))
    seed = draw(st.integers(0, 2**16))
    tensors = [
        raw_bytes(tensor.size, seed + i) for i, tensor in enumerate(cache.config.kv_cache_tensors)
    ]
    raw: dict[str, Any] = {
        layer.name: tensors[layer.tensor] for layer in shuffled(draw, cache.layers)
    }
    if draw(st.SOMETIMES):
        # A layer that is in no group is ignored, with any tensor.
        raw["layers.77.attn"] = np.zeros((2, 3), np.float32)
    arguments: Arguments = {
        "kv_cache_config": cache.config,
        "kv_cache_raw_tensors": raw,
        "attn_backends": cache.backends,
    }
    if cache.kernel_block_sizes is not None or draw(st.booleans()):
        arguments["kernel_block_sizes"] = cache.kernel_block_sizes
    return Call("_reshape_kv_cache", arguments, cache)
