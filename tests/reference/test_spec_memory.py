"""Memory of a request: how many pages each kind of spec says it needs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reference import (
    AttentionSpec,
    CacheConfig,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    VllmConfig,
)

FIELDS = (16, 3, 5, np.float16)
PAGE = 2 * 16 * 3 * 5 * 2
MAMBA = MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))


def make_config(
    *,
    max_model_len: int = 100,
    step: int = 33,
    encoder_tokens: int = 0,
    dcp: int = 1,
    pcp: int = 1,
    mode: str = "none",
) -> VllmConfig:
    """Return an engine's configuration."""
    return VllmConfig(
        model_config=ModelConfig(max_model_len=max_model_len),
        cache_config=CacheConfig(mamba_cache_mode=mode),
        parallel_config=ParallelConfig(
            decode_context_parallel_size=dcp, prefill_context_parallel_size=pcp
        ),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=step,
            max_num_seqs=8,
            max_num_encoder_input_tokens=encoder_tokens,
        ),
    )


@pytest.mark.parametrize(
    ("cls", "more", "config", "pages"),
    [
        (FullAttentionSpec, (), {"max_model_len": 96}, 6),
        (FullAttentionSpec, (), {"max_model_len": 97}, 7),
        (FullAttentionSpec, (8,), {"max_model_len": 97}, 7),
        (FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2}, 4),
        (FullAttentionSpec, (), {"max_model_len": 97, "pcp": 3}, 3),
        (FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2, "pcp": 3}, 2),
        (FullAttentionSpec, (), {"max_model_len": 96, "dcp": 2, "pcp": 3}, 1),
        (ChunkedLocalAttentionSpec, (31,), {"max_model_len": 1000}, 4),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000}, 5),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 64}, 4),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000, "dcp": 2}, 5),
        (SlidingWindowSpec, (32,), {"max_model_len": 1000}, 5),
        (SlidingWindowSpec, (33,), {"max_model_len": 1000}, 6),
        (SlidingWindowSpec, (33,), {"max_model_len": 64}, 5),
        (SlidingWindowSpec, (1,), {"max_model_len": 1000, "step": 1}, 2),
        (SlidingWindowSpec, (32,), {"max_model_len": 1000, "pcp": 2}, 5),
        (CrossAttentionSpec, (), {"encoder_tokens": 0}, 0),
        (CrossAttentionSpec, (), {"encoder_tokens": 1500}, 94),
        (EncoderOnlyAttentionSpec, (), {}, 0),
    ],
)
def test_memory_of_attention(
    cls: type[AttentionSpec], more: tuple[int, ...], config: dict[str, int], pages: int
) -> None:
    """A request needs so many pages, by kind and configuration."""
    needed = cls(*FIELDS, *more).max_memory_usage_bytes(make_config(**config))
    assert pages * PAGE == needed
    assert type(needed) is int


def test_memory_of_mla() -> None:
    """MLA needs as many pages as full attention, of its own size."""
    spec = MLAAttentionSpec(*FIELDS)
    assert 4 * PAGE // 2 == spec.max_memory_usage_bytes(make_config(max_model_len=97, dcp=2))


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
def test_memory_of_mamba(mode: str, speculative: int, pages: int) -> None:
    """A request needs so many pages by the cache's mode; speculative ones unless all are kept."""
    spec = dataclasses.replace(MAMBA, page_size_padded=64, num_speculative_blocks=speculative)
    assert pages * 64 == spec.max_memory_usage_bytes(make_config(mode=mode))


def test_memory_of_uniform_specs() -> None:
    """A request needs the most pages of any spec, of the size of all together."""
    small, large = SlidingWindowSpec(16, 1, 5, np.int8, 8), SlidingWindowSpec(*FIELDS, 40)
    specs = UniformTypeKVCacheSpecs(16, {"a": small, "b": large, "c": small})
    assert 2 * 160 + PAGE == specs.page_size_bytes
    assert (5 + 1) * (320 + PAGE) == specs.max_memory_usage_bytes(make_config())
    assert small.max_memory_usage_bytes(make_config()) == (3 + 1) * 160


def test_what_is_read() -> None:
    """A kind reads of a configuration only what its formula names."""
    model = SimpleNamespace(max_model_len=np.int64(100))
    parallel = SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=np.int32(1)
    )
    step = SimpleNamespace(max_num_batched_tokens=33)
    full = SimpleNamespace(model_config=model, parallel_config=parallel)
    assert 7 * PAGE == FullAttentionSpec(*FIELDS).max_memory_usage_bytes(full)
    chunked = SimpleNamespace(model_config=model, scheduler_config=step)
    spec: KVCacheSpec = ChunkedLocalAttentionSpec(*FIELDS, 15)
    assert 3 * PAGE == spec.max_memory_usage_bytes(chunked)
    sliding = SimpleNamespace(
        model_config=model,
        scheduler_config=step,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )
    assert 4 * PAGE == SlidingWindowSpec(*FIELDS, 16).max_memory_usage_bytes(sliding)
    encoder = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_encoder_input_tokens=17))
    assert 2 * PAGE == CrossAttentionSpec(*FIELDS).max_memory_usage_bytes(encoder)
    assert EncoderOnlyAttentionSpec(*FIELDS).max_memory_usage_bytes(None) == 0
    for mode, pages in (("none", 1), ("align", 2)):
        cache = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode=mode))
        assert pages * 44 == MAMBA.max_memory_usage_bytes(cache)


@pytest.mark.parametrize("spec", [FullAttentionSpec(*FIELDS), SlidingWindowSpec(*FIELDS, 8), MAMBA])
def test_attributes_that_are_read(spec: KVCacheSpec) -> None:
    """A configuration that is None, or lacks what is read, says so."""
    for config in (None, SimpleNamespace(), VllmConfig()):
        with pytest.raises(AttributeError, match="has no attribute"):
            spec.max_memory_usage_bytes(config)


@pytest.mark.parametrize(
    ("spec", "config", "error", "message"),
    [
        (
            FullAttentionSpec(*FIELDS),
            {"max_model_len": 0},
            ValueError,
            "vllm_config.model_config.max_model_len is 0, expected at least 1",
        ),
        (
            FullAttentionSpec(*FIELDS),
            {"dcp": True},
            TypeError,
            (
                "vllm_config.parallel_config.decode_context_parallel_size must be an int, "
                "got True of bool"
            ),
        ),
        (
            FullAttentionSpec(*FIELDS),
            {"pcp": 0},
            ValueError,
            "vllm_config.parallel_config.prefill_context_parallel_size is 0, expected at least 1",
        ),
        (
            SlidingWindowSpec(*FIELDS, 8),
            {"dcp": 2},
            ValueError,
            (
                "vllm_config.parallel_config.decode_context_parallel_size is 2, expected "
                "1: a sliding window is not spread over ranks"
            ),
        ),
        (
            SlidingWindowSpec(*FIELDS, 8),
            {"step": None},
            TypeError,
            (
                "vllm_config.scheduler_config.max_num_batched_tokens must be an int, got "
                "None of NoneType"
            ),
        ),
        (
            ChunkedLocalAttentionSpec(*FIELDS, 8),
            {"step": 0},
            ValueError,
            "vllm_config.scheduler_config.max_num_batched_tokens is 0, expected at least 1",
        ),
        (
            CrossAttentionSpec(*FIELDS),
            {"encoder_tokens": -1},
            ValueError,
            "vllm_config.scheduler_config.max_num_encoder_input_tokens is -1, expected at least 0",
        ),
        *(
            (
                MAMBA,
                {"mode": mode},
                ValueError,
                (
                    f"vllm_config.cache_config.mamba_cache_mode is {mode!r}, "
                    "expected 'none', 'align' or 'all'"
                ),
            )
            for mode in ("", "ALL", None, True, ["all"], np.zeros(2))
        ),
        (
            MAMBA,
            {"mode": "all", "max_model_len": 0.5},
            TypeError,
            "vllm_config.model_config.max_model_len must be an int, got 0.5 of float",
        ),
    ],
)
def test_refusals_of_configurations(
    spec: KVCacheSpec, config: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Each value that is read is checked, by name."""
    with pytest.raises(error) as caught:
        spec.max_memory_usage_bytes(make_config(**config))
    assert str(caught.value).startswith(message)
