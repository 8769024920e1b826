"""Specs: the bytes of a page and of a request, and which specs merge or are of one type."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference
from reference import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from tests.examples.twins import Twin

FIELDS = (16, 3, 5, np.float16)
PAGE = 960  # keys and values, 16 positions, 3 heads of 5 elements of 2 bytes
FULL = FullAttentionSpec(*FIELDS)
NEAR = FullAttentionSpec(*FIELDS, sliding_window=8)
CHUNKED = FullAttentionSpec(*FIELDS, attention_chunk_size=8)
MLA = MLAAttentionSpec(*FIELDS, cache_dtype_str="fp8")
CROSS = CrossAttentionSpec(*FIELDS)
ENCODER_ONLY = EncoderOnlyAttentionSpec(*FIELDS)
WINDOW = SlidingWindowSpec(*FIELDS, 8)
CHUNK = ChunkedLocalAttentionSpec(*FIELDS, 8)
MAMBA = MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (reference.AttentionSpec(*FIELDS), PAGE),
        (FULL, PAGE),
        (WINDOW, PAGE),
        (CHUNK, PAGE),
        (CROSS, PAGE),
        (ENCODER_ONLY, PAGE),
        (FullAttentionSpec(16, 8, 128, ml_dtypes.bfloat16), 65_536),
        (FullAttentionSpec(16, 8, 128, ml_dtypes.float8_e4m3fn), 32_768),
        (FullAttentionSpec(16, 8, 128, ml_dtypes.float8_e5m2), 32_768),
        (FullAttentionSpec(16, 8, 128, np.float32), 131_072),
        (FullAttentionSpec(16, 8, 128, np.uint8), 32_768),
        # MLA stores one vector of a token and head, of 512 + 64 elements in DeepSeek's models
        (MLAAttentionSpec(64, 1, 576, np.float16), 64 * 576 * 2),
        (MLAAttentionSpec(64, 2, 576, np.int8), 64 * 2 * 576),
        (MLAAttentionSpec(64, 1, 576, np.uint8, cache_dtype_str="fp8"), 64 * 576),
        # this format has 656 bytes of a token: 512 of float8, 4 scales, 64 of bfloat16
        (MLAAttentionSpec(64, 1, 576, np.uint8, cache_dtype_str="fp8_ds_mla"), 64 * 656),
        (MLAAttentionSpec(64, 2, 576, np.float32, cache_dtype_str="fp8_ds_mla"), 64 * 656),
        (MAMBA, 12 * 2 + 5 * 4),
        (MambaSpec(16, ((),), (np.float32,)), 4),
        (MambaSpec(16, ((3, 4),), (np.float16,), page_size_padded=64), 64),
        (
            reference.UniformTypeKVCacheSpecs(16, {"a": FULL, "b": WINDOW, "c": MAMBA}),
            2 * PAGE + 44,
        ),
    ],
)
def test_bytes_of_a_page(twin: Twin, spec, expected) -> None:
    assert expected == twin.of(spec).page_size_bytes


def test_specs_that_do_not_say(twin: Twin) -> None:
    with pytest.raises(NotImplementedError, match="KVCacheSpec has no page_size_bytes"):
        _ = twin.KVCacheSpec(16).page_size_bytes
    for spec in (KVCacheSpec(16), reference.AttentionSpec(*FIELDS)):
        with pytest.raises(NotImplementedError, match=" has no max_memory_usage_bytes"):
            twin.of(spec).max_memory_usage_bytes(None)


def test_equal_specs(twin: Twin) -> None:
    listed = twin.MambaSpec(np.int64(16), [[np.int64(3), 4], [5]], list(twin.of(MAMBA).dtypes))
    assert twin.of(MAMBA) == listed
    assert hash(twin.of(MAMBA)) == hash(listed)
    some = {twin.of(spec) for spec in (FULL, NEAR, CHUNKED, MLA, CROSS, ENCODER_ONLY, WINDOW)}
    assert 7 == len(some)
    with pytest.raises(dataclasses.FrozenInstanceError):
        listed.block_size = 8


@pytest.mark.parametrize("spec", [FULL, MLA, WINDOW, CHUNK, CROSS, ENCODER_ONLY, MAMBA])
def test_new_block_sizes(twin: Twin, spec) -> None:
    copied = twin.of(spec).copy_with_new_block_size(8)
    assert twin.of(dataclasses.replace(spec, block_size=8)) == copied
    uniform = twin.UniformTypeKVCacheSpecs(16, {"a": twin.of(spec)})
    assert twin.UniformTypeKVCacheSpecs(8, {"a": copied}) == uniform.copy_with_new_block_size(8)


def make_config(
    twin: Twin,
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
        # full attention: blocks of 16 for the longest sequence, divided over the ranks
        (FullAttentionSpec, (), {"max_model_len": 96}, 6),
        (FullAttentionSpec, (), {"max_model_len": 97}, 7),
        (FullAttentionSpec, (8,), {"max_model_len": 97}, 7),
        (FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2}, 4),
        (FullAttentionSpec, (), {"max_model_len": 97, "pcp": 3}, 3),
        (FullAttentionSpec, (), {"max_model_len": 97, "dcp": 2, "pcp": 3}, 2),
        (FullAttentionSpec, (), {"max_model_len": 96, "dcp": 2, "pcp": 3}, 1),
        # a chunk, and the tokens of a step: 31 + 33 = 64
        (ChunkedLocalAttentionSpec, (31,), {"max_model_len": 1000}, 4),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000}, 5),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 64}, 4),
        (ChunkedLocalAttentionSpec, (32,), {"max_model_len": 1000, "dcp": 2}, 5),
        # a window without its own token, and a step, which begin anywhere in a block
        (SlidingWindowSpec, (32,), {"max_model_len": 1000}, 5),
        (SlidingWindowSpec, (33,), {"max_model_len": 1000}, 6),
        (SlidingWindowSpec, (33,), {"max_model_len": 64}, 5),
        (SlidingWindowSpec, (1,), {"max_model_len": 1000, "step": 1}, 2),
        (SlidingWindowSpec, (32,), {"max_model_len": 1000, "pcp": 2}, 5),
        # the encoder's tokens
        (CrossAttentionSpec, (), {"encoder_tokens": 0}, 0),
        (CrossAttentionSpec, (), {"encoder_tokens": 1500}, 94),
        (EncoderOnlyAttentionSpec, (), {}, 0),
    ],
)
def test_bytes_of_a_request(twin: Twin, cls, more, config, pages) -> None:
    spec = twin.of(cls(*FIELDS, *more))
    assert pages * PAGE == spec.max_memory_usage_bytes(make_config(twin, **config))


@pytest.mark.parametrize(
    ("mode", "speculative", "pages"),
    [
        ("none", 0, 1),  # one state
        ("none", 3, 4),  # and one for each draft token
        ("align", 0, 2),
        ("align", 3, 5),
        ("all", 0, 7),  # a state for each of 7 blocks
        ("all", 3, 7),
    ],
)
def test_bytes_of_a_mamba_request(twin: Twin, mode, speculative, pages) -> None:
    spec = dataclasses.replace(MAMBA, page_size_padded=64, num_speculative_blocks=speculative)
    assert pages * 64 == twin.of(spec).max_memory_usage_bytes(make_config(twin, mode=mode))


def test_bytes_of_a_request_of_other_specs(twin: Twin) -> None:
    mla = make_config(twin, max_model_len=97, dcp=2)
    assert 4 * PAGE // 2 == twin.of(MLA).max_memory_usage_bytes(mla)
    small = SlidingWindowSpec(16, 1, 5, np.int8, 8)  # pages of 160 bytes, 4 of a request
    large = SlidingWindowSpec(*FIELDS, 40)  # 6 of a request
    uniform = reference.UniformTypeKVCacheSpecs(16, {"a": small, "b": large, "c": small})
    assert 4 * 160 == twin.of(small).max_memory_usage_bytes(make_config(twin))
    # the layers share blocks, so each has the most that one of them needs
    assert 6 * (2 * 160 + PAGE) == twin.of(uniform).max_memory_usage_bytes(make_config(twin))


OWN_FULL = type("Own", (type("FullAttentionSpec", (type("KVCacheSpec", (), {}),), {}),), {})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([MAMBA, MambaSpec(16, [[3, 4], [5]], MAMBA.dtypes)], MAMBA),
        ([WINDOW] * 3, WINDOW),
        ([FULL], FULL),
        # layers of full attention may have a window, or chunks, which the merged spec keeps
        ([FULL, NEAR, FULL, NEAR], NEAR),
        ([CHUNKED, FULL], CHUNKED),
        ([MLA, MLA], MLA),
        (
            [MLA, dataclasses.replace(MLA, sliding_window=4)],
            dataclasses.replace(MLA, sliding_window=4),
        ),
    ],
)
def test_merged_specs(twin: Twin, specs, expected) -> None:
    merged = type(twin.of(specs[0])).merge(twin.of(specs))
    assert (twin.of(expected), type(twin.of(expected))) == (merged, type(merged))


def test_an_engines_own_spec_merges(twin: Twin) -> None:
    own: Any = OWN_FULL()
    vars(own).update(vars(twin.of(NEAR)))
    assert twin.of(NEAR) == twin.FullAttentionSpec.merge([own, twin.of(FULL)])
    assert twin.UniformTypeKVCacheSpecs.is_uniform_type({"a": own, "b": twin.of(MLA)})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([FULL, FullAttentionSpec(16, 7, 9, np.int8), NEAR, MLA], True),  # pages may differ
        ([MLA, FULL], True),
        ([FULL, CROSS], False),
        ([CROSS, CrossAttentionSpec(16, 7, 9, np.int8)], True),
        ([CROSS, FULL], False),
        ([WINDOW, SlidingWindowSpec(16, 7, 9, np.int8, 8)], True),
        ([WINDOW, SlidingWindowSpec(*FIELDS, 9)], False),
        ([WINDOW, NEAR], False),
        ([CHUNK, CHUNK], True),
        ([CHUNK, ChunkedLocalAttentionSpec(*FIELDS, 9)], False),
        ([CHUNK, CHUNKED], False),
        ([MAMBA, MambaSpec(16, ((7,),), (np.int8,))], True),
        ([MAMBA, dataclasses.replace(MAMBA, num_speculative_blocks=1)], False),
        ([MAMBA, FULL], False),
        ([FULL, ENCODER_ONLY], False),
        ([ENCODER_ONLY, FULL.copy_with_new_block_size(8)], False),
        ([FULL, FULL.copy_with_new_block_size(32)], False),
        ([KVCacheSpec(16), KVCacheSpec(32)], False),
    ],
)
def test_uniform_types(twin: Twin, specs, expected) -> None:
    by_layer = {f"layers.{i}": spec for i, spec in enumerate(twin.of(specs))}
    assert expected is twin.UniformTypeKVCacheSpecs.is_uniform_type(by_layer)
    uniform = twin.UniformTypeKVCacheSpecs.from_specs(by_layer)
    assert (twin.UniformTypeKVCacheSpecs(16, by_layer) if expected else None) == uniform
