"""Specs of a group's layers: which of them merge, and which are of one uniform type."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import reference

FIELDS = (16, 3, 5, np.float16)
MAMBA = reference.MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))
FULL = reference.FullAttentionSpec(*FIELDS)
NEAR = reference.FullAttentionSpec(*FIELDS, sliding_window=8)
CHUNKED = reference.FullAttentionSpec(*FIELDS, attention_chunk_size=8)
MLA = reference.MLAAttentionSpec(*FIELDS, cache_dtype_str="fp8")
CROSS = reference.CrossAttentionSpec(*FIELDS)
ENCODER_ONLY = reference.EncoderOnlyAttentionSpec(*FIELDS)
WINDOW = reference.SlidingWindowSpec(*FIELDS, 8)
CHUNK = reference.ChunkedLocalAttentionSpec(*FIELDS, 8)


@pytest.mark.parametrize(
    ("cls", "specs", "expected"),
    [
        (
            reference.KVCacheSpec,
            [MAMBA, reference.MambaSpec(16, [[3, 4], [5]], MAMBA.dtypes)],
            MAMBA,
        ),
        (reference.SlidingWindowSpec, [WINDOW] * 3, WINDOW),
        (reference.FullAttentionSpec, [FULL], FULL),
        (reference.FullAttentionSpec, [FULL, NEAR, FULL, NEAR], NEAR),
        (reference.FullAttentionSpec, [CHUNKED, FULL], CHUNKED),
        (reference.MLAAttentionSpec, [MLA, MLA], MLA),
        (
            reference.MLAAttentionSpec,
            [MLA, dataclasses.replace(MLA, sliding_window=4)],
            dataclasses.replace(MLA, sliding_window=4),
        ),
        (
            reference.MLAAttentionSpec,
            [reference.MLAAttentionSpec(*FIELDS)],
            reference.MLAAttentionSpec(*FIELDS),
        ),
    ],
)
def test_merge(twin: Any, cls: type[Any], specs: list[Any], expected: Any) -> None:
    merged = getattr(twin, cls.__name__).merge(twin.convert(specs))
    assert twin.convert(expected) == merged
    assert type(merged) is getattr(twin, type(expected).__name__)


def test_merge_makes_its_own_class(twin: Any) -> None:
    near, full, mla = twin.convert([NEAR, FULL, MLA])
    own = type("OwnFull", (type("FullAttentionSpec", (type("KVCacheSpec", (), {}),), {}),), {})()
    for field in dataclasses.fields(near):
        setattr(own, field.name, getattr(near, field.name))
    assert near == twin.FullAttentionSpec.merge([own, full])
    assert twin.UniformTypeKVCacheSpecs.is_uniform_type({"a": own, "b": mla})


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([FULL, reference.FullAttentionSpec(16, 7, 9, np.int8), NEAR, MLA], True),
        ([MLA, FULL], True),
        ([FULL, CROSS], False),
        ([CROSS, reference.CrossAttentionSpec(16, 7, 9, np.int8)], True),
        ([CROSS, FULL], False),
        ([WINDOW, reference.SlidingWindowSpec(16, 7, 9, np.int8, 8)], True),
        ([WINDOW, reference.SlidingWindowSpec(*FIELDS, 9)], False),
        ([WINDOW, NEAR], False),
        ([CHUNK, CHUNK], True),
        ([CHUNK, reference.ChunkedLocalAttentionSpec(*FIELDS, 9)], False),
        ([CHUNK, CHUNKED], False),
        ([MAMBA, reference.MambaSpec(16, ((7,),), (np.int8,))], True),
        ([MAMBA, dataclasses.replace(MAMBA, num_speculative_blocks=1)], False),
        ([MAMBA, FULL], False),
        ([FULL, ENCODER_ONLY], False),
        ([ENCODER_ONLY, FULL.copy_with_new_block_size(8)], False),
        ([FULL, FULL.copy_with_new_block_size(32)], False),
        ([reference.KVCacheSpec(16), reference.KVCacheSpec(32)], False),
    ],
)
def test_uniform_type(twin: Any, specs: Any, expected: bool) -> None:
    by_layer = {f"layers.{i}": spec for i, spec in enumerate(twin.convert(specs))}
    assert expected is twin.UniformTypeKVCacheSpecs.is_uniform_type(by_layer)
    uniform = twin.UniformTypeKVCacheSpecs.from_specs(by_layer)
    assert (twin.UniformTypeKVCacheSpecs(16, by_layer) if expected else None) == uniform
