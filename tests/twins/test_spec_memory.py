"""Memory of a request: the number of pages for each kind of spec."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import reference

FIELDS = (16, 3, 5, np.float16)
PAGE = 2 * 16 * 3 * 5 * 2
MAMBA = reference.MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))


def make_config(
    twin: Any,
    *,
    max_model_len: int = 100,
    step: int = 33,
    encoder_tokens: int = 0,
    dcp: int = 1,
    pcp: int = 1,
    mode: str = "none",
) -> Any:
    return twin.VllmConfig(
        model_config=twin.ModelConfig(max_model_len=max_model_len),
        cache_config=twin.CacheConfig(mamba_cache_mode=mode),
        parallel_config=twin.ParallelConfig(
            decode_context_parallel_size=dcp, prefill_context_parallel_size=pcp
        ),
        scheduler_config=twin.SchedulerConfig(
            max_num_batched_tokens=step,
            max_num_seqs=8,
            max_num_encoder_input_tokens=encoder_tokens,
        ),
    )


@pytest.mark.parametrize(
    ("cls", "more", "config", "pages"),
    [
        (reference.FullAttentionSpec, (), {"max_model_len": 96}, 6),
        (reference.FullAttentionSpec, (), {"max_model_len": 97}, 7),
        (reference.FullAttentionSpec, (8,), {"max_model_len": 97}, 7),
        (reference.FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2}, 4),
        (reference.FullAttentionSpec, (), {"max_model_len": 97, "pcp": 3}, 3),
        (reference.FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2, "pcp": 3}, 2),
        (reference.FullAttentionSpec, (), {"max_model_len": 96, "dcp": 2, "pcp": 3}, 1),
        (reference.ChunkedLocalAttentionSpec, (31,), {"max_model_len": 1000}, 4),
        (reference.ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000}, 5),
        (reference.ChunkedLocalAttentionSpec, (32,), {"max_model_len": 64}, 4),
        (reference.ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000, "dcp": 2}, 5),
        (reference.SlidingWindowSpec, (32,), {"max_model_len": 1000}, 5),
        (reference.SlidingWindowSpec, (33,), {"max_model_len": 1000}, 6),
        (reference.SlidingWindowSpec, (33,), {"max_model_len": 64}, 5),
        (reference.SlidingWindowSpec, (1,), {"max_model_len": 1000, "step": 1}, 2),
        (reference.SlidingWindowSpec, (32,), {"max_model_len": 1000, "pcp": 2}, 5),
        (reference.CrossAttentionSpec, (), {"encoder_tokens": 0}, 0),
        (reference.CrossAttentionSpec, (), {"encoder_tokens": 1500}, 94),
        (reference.EncoderOnlyAttentionSpec, (), {}, 0),
    ],
)
def test_memory_of_attention(
    twin: Any, cls: Any, more: tuple[int, ...], config: dict[str, int], pages: int
) -> None:
    spec = twin.convert(cls(*FIELDS, *more))
    needed = spec.max_memory_usage_bytes(make_config(twin, **config))
    assert pages * PAGE == needed
    assert type(needed) is int


def test_memory_of_mla(twin: Any) -> None:
    spec = twin.MLAAttentionSpec(*twin.convert(FIELDS))
    assert 4 * PAGE // 2 == spec.max_memory_usage_bytes(make_config(twin, max_model_len=97, dcp=2))


@pytest.mark.parametrize(
    ("mode", "speculative", "pages"),
    [
        ("none", 0, 1),
        ("none", 3, 4),
        ("align", 0, 2),
        ("align", 3, 5),
        ("all", 0, 7),
        ("all", 3, 7),
    ],
)
def test_memory_of_mamba(twin: Any, mode: str, speculative: int, pages: int) -> None:
    spec = dataclasses.replace(
        twin.convert(MAMBA), page_size_padded=64, num_speculative_blocks=speculative
    )
    assert pages * 64 == spec.max_memory_usage_bytes(make_config(twin, mode=mode))


def test_memory_of_uniform_specs(twin: Any) -> None:
    small, large = (
        twin.SlidingWindowSpec(16, 1, 5, twin.dtype("int8"), 8),
        twin.SlidingWindowSpec(*twin.convert(FIELDS), 40),
    )
    specs = twin.UniformTypeKVCacheSpecs(16, {"a": small, "b": large, "c": small})
    assert 2 * 160 + PAGE == specs.page_size_bytes
    assert (5 + 1) * (320 + PAGE) == specs.max_memory_usage_bytes(make_config(twin))
    assert small.max_memory_usage_bytes(make_config(twin)) == (3 + 1) * 160


def test_what_is_read(twin: Any) -> None:
    model = SimpleNamespace(max_model_len=np.int64(100))
    parallel = SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=np.int32(1)
    )
    step = SimpleNamespace(max_num_batched_tokens=33)
    full = SimpleNamespace(model_config=model, parallel_config=parallel)
    assert 7 * PAGE == twin.FullAttentionSpec(*twin.convert(FIELDS)).max_memory_usage_bytes(full)
    chunked = SimpleNamespace(model_config=model, scheduler_config=step)
    spec: Any = twin.ChunkedLocalAttentionSpec(*twin.convert(FIELDS), 15)
    assert 3 * PAGE == spec.max_memory_usage_bytes(chunked)
    sliding = SimpleNamespace(
        model_config=model,
        scheduler_config=step,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )
    assert 4 * PAGE == twin.SlidingWindowSpec(*twin.convert(FIELDS), 16).max_memory_usage_bytes(
        sliding
    )
    encoder = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_encoder_input_tokens=17))
    assert 2 * PAGE == twin.CrossAttentionSpec(*twin.convert(FIELDS)).max_memory_usage_bytes(
        encoder
    )
    assert twin.EncoderOnlyAttentionSpec(*twin.convert(FIELDS)).max_memory_usage_bytes(None) == 0
    for mode, pages in (("none", 1), ("align", 2)):
        cache = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode))
        assert pages * 44 == twin.convert(MAMBA).max_memory_usage_bytes(cache)
