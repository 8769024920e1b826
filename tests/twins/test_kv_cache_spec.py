"""KV cache specs: page sizes, values, copies, and errors of the constructors."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference

FIELDS = (16, 3, 5, np.float16)
PAGE = 2 * 16 * 3 * 5 * 2
MAMBA = reference.MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))

WINDOW = reference.SlidingWindowSpec(*FIELDS, 8)
SPECS = (
    reference.AttentionSpec(*FIELDS),
    reference.FullAttentionSpec(*FIELDS),
    reference.MLAAttentionSpec(*FIELDS),
    reference.ChunkedLocalAttentionSpec(*FIELDS, 8),
    WINDOW,
    reference.CrossAttentionSpec(*FIELDS),
    reference.EncoderOnlyAttentionSpec(*FIELDS),
    MAMBA,
)
ITEMSIZES = {
    ml_dtypes.bfloat16: 2,
    np.float16: 2,
    np.float32: 4,
    np.int8: 1,
    np.uint8: 1,
    ml_dtypes.float8_e4m3fn: 1,
    ml_dtypes.float8_e5m2: 1,
}


@pytest.mark.parametrize("dtype", ITEMSIZES)
def test_pages_of_attention(twin: Any, dtype: Any) -> None:
    for spec in SPECS[:2] + SPECS[3:7]:
        made = dataclasses.replace(twin.convert(spec), dtype=twin.convert(dtype))
        assert 2 * 16 * 3 * 5 * ITEMSIZES[dtype] == made.page_size_bytes
        assert twin.convert(np.dtype(dtype)) == made.dtype


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_numbers(twin: Any, spec: Any) -> None:
    spec = twin.convert(spec)
    no_numbers = {"dtype", "shapes", "dtypes", "cache_dtype_str", "mamba_type"}
    for name in {field.name for field in dataclasses.fields(spec)} - no_numbers:
        big = dataclasses.replace(spec, **{name: np.int64(2**40)})
        assert (2**40, int) == (getattr(big, name), type(getattr(big, name)))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_frozen_values(twin: Any, spec: Any) -> None:
    spec = twin.convert(spec)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.block_size = 8
    assert [spec] == [other for other in map(twin.convert, SPECS) if spec == other]
    same = dataclasses.replace(spec, block_size=np.int8(16))
    assert spec == same == pickle.loads(pickle.dumps(spec))  # noqa: S301  # our own
    assert hash(spec) == hash(same)
    copied = spec.copy_with_new_block_size(np.int64(8))
    assert dataclasses.replace(spec, block_size=8) == copied
    assert (int, type(spec)) == (type(copied.block_size), type(copied))


@pytest.mark.parametrize(
    ("num_kv_heads", "dtype", "cache_dtype_str", "expected"),
    [
        (1, np.float16, None, 64 * 1 * 576 * 2),
        (2, np.int8, None, 64 * 2 * 576 * 1),
        (1, np.uint8, "fp8", 64 * 576),
        (2, np.uint8, "fp8_ds_mla", 64 * 656),
        (2, np.float32, "fp8_ds_mla", 64 * 656),
    ],
)
def test_pages_of_mla(
    twin: Any, num_kv_heads: int, dtype: Any, cache_dtype_str: str | None, expected: int
) -> None:
    spec = twin.MLAAttentionSpec(
        64, num_kv_heads, 576, twin.convert(dtype), cache_dtype_str=cache_dtype_str
    )
    assert expected == spec.page_size_bytes


def test_pages_of_mamba(twin: Any) -> None:
    mamba = twin.convert(MAMBA)
    assert 12 * 2 + 5 * 4 == mamba.page_size_bytes
    dtypes = [twin.dtype("float16"), twin.dtype("float32")]
    listed = twin.MambaSpec(16, [[np.int64(3), 4], [5]], dtypes)
    assert mamba == listed
    assert hash(mamba) == hash(listed)
    assert (((3, 4), (5,)), tuple(dtypes)) == (listed.shapes, listed.dtypes)
    assert {int} == {type(length) for shape in listed.shapes for length in shape}
    assert 4 == twin.MambaSpec(16, ((),), dtypes[1:]).page_size_bytes
    for padded in (24, np.int64(64)):
        assert padded == twin.MambaSpec(16, ((3, 4),), dtypes[:1], padded).page_size_bytes
    others = mamba.mamba_type, mamba.num_speculative_blocks, mamba.page_size_padded
    assert ("mamba2", 0, None) == others


def test_abstract(twin: Any) -> None:
    with twin.refuses("NotImplementedError: KVCacheSpec has no page_size_bytes"):
        _ = twin.KVCacheSpec(16).page_size_bytes
    for spec in (twin.KVCacheSpec(16), twin.convert(SPECS[0])):
        message = f"^{type(spec).__name__} has no max_memory_usage_bytes$"
        with pytest.raises(NotImplementedError, match=message):
            spec.max_memory_usage_bytes(None)
    own = type("OwnSpec", (twin.KVCacheSpec,), {})(16)
    with twin.refuses("NotImplementedError: OwnSpec has no page_size_bytes"):
        _ = twin.UniformTypeKVCacheSpecs(16, {"a": own}).page_size_bytes


def test_uniform_specs_are_values(twin: Any) -> None:
    given: dict[str, Any] = {"a": twin.KVCacheSpec(16), "b": twin.convert(MAMBA)}
    specs = twin.UniformTypeKVCacheSpecs(16, given)
    given["c"] = twin.KVCacheSpec(16)
    assert ["a", "b"] == list(specs.kv_cache_specs)
    turned = twin.UniformTypeKVCacheSpecs(16, {"b": twin.convert(MAMBA), "a": twin.KVCacheSpec(16)})
    assert specs == turned
    assert hash(specs) == hash(turned)


def test_uniform_copies_with_new_block_sizes(twin: Any) -> None:
    specs = twin.UniformTypeKVCacheSpecs(16, twin.convert({"a": WINDOW, "b": MAMBA}))
    copied = specs.copy_with_new_block_size(32)
    assert 32 == copied.block_size == copied.kv_cache_specs["a"].block_size
    assert 2 * PAGE + MAMBA.page_size_bytes == copied.page_size_bytes
    assert specs.block_size == specs.kv_cache_specs["a"].block_size == 16


def test_configurations_are_plain(twin: Any) -> None:
    tensor, group = twin.KVCacheTensor(-1, "nobody"), twin.KVCacheGroupSpec([], None)
    config = twin.KVCacheConfig(num_blocks=0, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    assert (
        twin.KVCacheConfig(0, [twin.KVCacheTensor(-1, "nobody")], [twin.KVCacheGroupSpec([], None)])
        == config
    )
    config.num_blocks, tensor.size, group.kv_cache_spec = 3, 5, MAMBA
    assert (3, 5, MAMBA) == (
        config.num_blocks,
        config.kv_cache_tensors[0].size,
        config.kv_cache_groups[0].kv_cache_spec,
    )
