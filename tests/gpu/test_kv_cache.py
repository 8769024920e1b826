"""KV caches on the GPU: where they are allocated, what is measured, that all bytes are zero."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fast

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


class Backend:
    """A backend whose blocks lie outermost in memory, then heads."""

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return keys and values, blocks, tokens, heads, elements."""
        return 2, num_blocks, block_size, num_kv_heads, head_size

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        return 1, 3, 0, 2, 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_caches_lie_on_the_gpu(dtype: torch.dtype) -> None:
    spec = fast.FullAttentionSpec(16, 4, 64, dtype)
    groups = [fast.KVCacheGroupSpec([f"layers.{i}.attn"], spec) for i in (0, 1)]
    names = [name for group in groups for name in group.layer_names]
    tensor = fast.KVCacheTensor(8 * spec.page_size_bytes, names)
    layers: dict[str, Any] = {name: SimpleNamespace() for name in names}
    caches: list[torch.Tensor] = []
    config = fast.KVCacheConfig(8, [tensor], groups)
    fast.init_kv_cache(caches, layers, config, dict.fromkeys(names, Backend), "cuda")
    first, second = caches
    assert first.is_cuda
    assert (2, 8, 16, 4, 64) == tuple(first.shape)
    assert (1024, 8192, 64, 2048, 1) == first.stride()
    assert first.data_ptr() == second.data_ptr()
    assert not first.view(torch.uint8).any()


def test_memory_is_measured() -> None:
    snapshot = fast.MemorySnapshot.measure("cuda")
    assert 0 < snapshot.free_memory <= snapshot.total_memory
    held = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert fast.MemorySnapshot.measure("cuda").free_memory <= snapshot.free_memory
    assert held.numel() == 2**28
    cache_config = fast.CacheConfig(gpu_memory_utilization=0.01)
    assert 0 < fast.request_memory(snapshot, cache_config) <= snapshot.total_memory
