"""Specs: the table of sizes, what can be merged, what is uniform, and what is refused."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from reference import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

FIELDS = (16, 3, 5, np.float16)
PAGE = 2 * 16 * 3 * 5 * 2
MAMBA = MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))

DTYPES = [
    (ml_dtypes.bfloat16, 2),
    (np.float16, 2),
    (np.float32, 4),
    (np.int8, 1),
    (np.uint8, 1),
    (ml_dtypes.float8_e4m3fn, 1),
    (ml_dtypes.float8_e5m2, 1),
]


ATTENTION: list[tuple[type[AttentionSpec], tuple[int, ...]]] = [
    (AttentionSpec, ()),
    (FullAttentionSpec, ()),
    (ChunkedLocalAttentionSpec, (8,)),
    (SlidingWindowSpec, (8,)),
    (CrossAttentionSpec, ()),
    (EncoderOnlyAttentionSpec, ()),
]


@pytest.mark.parametrize(("dtype", "itemsize"), DTYPES)
@pytest.mark.parametrize(("cls", "more"), ATTENTION)
def test_pages_of_attention(
    cls: type[AttentionSpec], more: tuple[int, ...], dtype: type[np.generic], itemsize: int
) -> None:
    """A page has a key and a value for each position and head, of any dtype; scalar types do."""
    spec = cls(16, 3, 5, dtype, *more)
    assert 2 * 16 * 3 * 5 * itemsize == spec.page_size_bytes
    assert np.dtype(dtype) == spec.dtype
    assert isinstance(spec.dtype, np.dtype)
    same = cls(np.int64(16), np.int32(3), np.int8(5), np.dtype(dtype), *map(np.int64, more))
    assert spec == same
    assert hash(spec) == hash(same)
    numbers = [v for v in dataclasses.astuple(same) if v is not None and v != np.dtype(dtype)]
    assert {int} == {type(number) for number in numbers}
    assert spec == pickle.loads(pickle.dumps(spec))  # noqa: S301  # our own


def test_pages_of_mla() -> None:
    """A page of MLA has one latent for each position; in one format it has bytes of its own."""
    assert 64 * 1 * 576 * 2 == MLAAttentionSpec(64, 1, 576, np.float16).page_size_bytes
    assert 64 * 2 * 576 * 1 == MLAAttentionSpec(64, 2, 576, np.int8).page_size_bytes
    for dtype in (np.uint8, np.float32):
        spec = MLAAttentionSpec(64, 2, 576, dtype, None, None, "fp8_ds_mla")
        assert 64 * 656 == spec.page_size_bytes
    assert 64 * 576 == MLAAttentionSpec(64, 1, 576, np.uint8, None, None, "fp8").page_size_bytes


def test_pages_of_mamba() -> None:
    """A page of Mamba has all states, or is padded; shapes and dtypes are stored as tuples."""
    assert 12 * 2 + 5 * 4 == MAMBA.page_size_bytes
    listed = MambaSpec(16, [[np.int64(3), 4], [5]], [np.dtype(np.float16), np.dtype(np.float32)])
    assert MAMBA == listed
    assert hash(MAMBA) == hash(listed)
    assert ((3, 4), (5,)) == listed.shapes
    assert {int} == {type(length) for shape in listed.shapes for length in shape}
    assert all(isinstance(dtype, np.dtype) for dtype in MAMBA.dtypes)
    assert MambaSpec(16, ((),), (np.float32,)).page_size_bytes == 4
    assert MambaSpec(16, ((3, 4),), (np.float16,), 24).page_size_bytes == 24
    assert MambaSpec(16, ((3, 4),), (np.float16,), np.int64(64)).page_size_bytes == 64
    assert ("mamba2", 0, None) == (
        MAMBA.mamba_type,
        MAMBA.num_speculative_blocks,
        MAMBA.page_size_padded,
    )


def test_abstract() -> None:
    """Every class can be made; what it does not say is not implemented, naming the class."""
    with pytest.raises(NotImplementedError, match=r"^KVCacheSpec has no page_size_bytes$"):
        _ = KVCacheSpec(16).page_size_bytes
    for spec in (KVCacheSpec(16), AttentionSpec(*FIELDS)):
        message = f"^{type(spec).__name__} has no max_memory_usage_bytes$"
        with pytest.raises(NotImplementedError, match=message):
            spec.max_memory_usage_bytes(None)
    own = type("OwnSpec", (KVCacheSpec,), {})(16)
    with pytest.raises(NotImplementedError, match=r"^OwnSpec has no page_size_bytes$"):
        _ = UniformTypeKVCacheSpecs(16, {"a": own}).page_size_bytes


def test_frozen_and_equal() -> None:
    """A spec does not change; specs of two classes are never equal."""
    with pytest.raises(AttributeError):
        MAMBA.block_size = 8
    fields = [cls(*FIELDS) for cls in (AttentionSpec, FullAttentionSpec, CrossAttentionSpec)]
    assert len(set(fields)) == 3
    assert FullAttentionSpec(*FIELDS) != FullAttentionSpec(*FIELDS, sliding_window=8)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: KVCacheSpec(0), ValueError, "block_size is 0, expected at least 1"),
        (lambda: KVCacheSpec(True), TypeError, "block_size must be an int, got True of bool"),
        (lambda: KVCacheSpec(16.0), TypeError, "block_size must be an int, got 16.0 of float"),
        (
            lambda: AttentionSpec(16, 0, 5, np.int8),
            ValueError,
            "num_kv_heads is 0, expected at least 1",
        ),
        (
            lambda: AttentionSpec(16, 3, -1, np.int8),
            ValueError,
            "head_size is -1, expected at least 1",
        ),
        (
            lambda: AttentionSpec(16, 3, "5", np.int8),
            TypeError,
            "head_size must be an int, got '5' of str",
        ),
        *(
            (
                lambda dtype=dtype: AttentionSpec(16, 3, 5, dtype),
                TypeError,
                "dtype must be a supported dtype, got ",
            )
            for dtype in (None, "float16", float, np.floating, np.object_, np.dtype(">f4"), np.str_)
        ),
        (
            lambda: FullAttentionSpec(*FIELDS, sliding_window=0),
            ValueError,
            "sliding_window is 0, expected at least 1",
        ),
        (
            lambda: FullAttentionSpec(*FIELDS, attention_chunk_size=1.5),
            TypeError,
            "attention_chunk_size must be an int, got 1.5 of float",
        ),
        (
            lambda: SlidingWindowSpec(*FIELDS, None),
            TypeError,
            "sliding_window must be an int, got None of NoneType",
        ),
        (
            lambda: ChunkedLocalAttentionSpec(*FIELDS, None),
            TypeError,
            "attention_chunk_size must be an int, got None of NoneType",
        ),
        (
            lambda: ChunkedLocalAttentionSpec(*FIELDS, 0),
            ValueError,
            "attention_chunk_size is 0, expected at least 1",
        ),
        (
            lambda: MLAAttentionSpec(*FIELDS, cache_dtype_str=3),
            TypeError,
            "cache_dtype_str must be a str or None, got 3 of int",
        ),
        (
            lambda: MambaSpec(16, (), ()),
            ValueError,
            "shapes is empty, expected at least 1 state",
        ),
        (
            lambda: MambaSpec(16, ((3,),), (np.int8, np.int8)),
            ValueError,
            "dtypes has 2 entries, expected 1, as many as shapes",
        ),
        (
            lambda: MambaSpec(16, ((3, 0),), (np.int8,)),
            ValueError,
            "shapes[0][1] is 0, expected at least 1",
        ),
        (
            lambda: MambaSpec(16, (3,), (np.int8,)),
            TypeError,
            "shapes[0] must be a tuple or list, got 3 of int",
        ),
        (
            lambda: MambaSpec(16, ((True,),), (np.int8,)),
            TypeError,
            "shapes[0][0] must be an int, got True of bool",
        ),
        (
            lambda: MambaSpec(16, np.ones((1, 1), int), (np.int8,)),
            TypeError,
            "shapes must be a tuple or list, got array",
        ),
        (
            lambda: MambaSpec(16, ((3,),), np.int8),
            TypeError,
            "dtypes must be a tuple or list, got dtype int8",
        ),
        (
            lambda: MambaSpec(16, ((3,),), ("int8",)),
            TypeError,
            ("dtypes[0] must be a supported dtype, got 'int8' of str"),
        ),
        (
            lambda: MambaSpec(16, ((3,),), (np.float32,), 11),
            ValueError,
            "page_size_padded is 11, less than the 12 bytes of the states",
        ),
        (
            lambda: MambaSpec(16, ((3,),), (np.float32,), 12.0),
            TypeError,
            "page_size_padded must be an int, got 12.0 of float",
        ),
        (
            lambda: MambaSpec(16, ((3,),), (np.float32,), mamba_type=None),
            TypeError,
            "mamba_type must be a str, got None of NoneType",
        ),
        (
            lambda: MambaSpec(16, ((3,),), (np.float32,), num_speculative_blocks=-1),
            ValueError,
            "num_speculative_blocks is -1, expected at least 0",
        ),
        (
            lambda: UniformTypeKVCacheSpecs(16, {}),
            ValueError,
            "kv_cache_specs is empty, expected at least 1 spec",
        ),
        (
            lambda: UniformTypeKVCacheSpecs(16, [KVCacheSpec(16)]),
            TypeError,
            "kv_cache_specs must be a dict, got list",
        ),
        (
            lambda: UniformTypeKVCacheSpecs(16, {3: KVCacheSpec(16)}),
            TypeError,
            "a key of kv_cache_specs must be a str, got 3 of int",
        ),
        (
            lambda: UniformTypeKVCacheSpecs(16, {"a": 3}),
            TypeError,
            "kv_cache_specs['a'] must be a KVCacheSpec, got 3 of int",
        ),
        (
            lambda: UniformTypeKVCacheSpecs(16, {"a": KVCacheSpec(16), "b": KVCacheSpec(32)}),
            ValueError,
            "kv_cache_specs['b'].block_size is 32, expected block_size 16",
        ),
        (
            lambda: MAMBA.copy_with_new_block_size(0),
            ValueError,
            "block_size is 0, expected at least 1",
        ),
    ],
)
def test_refusals_when_made(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    """Each field is checked when a spec is made, in these words."""
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_uniform_specs_are_values() -> None:
    """A uniform spec keeps a copy of its dict, and equal ones hash alike, whatever the order."""
    given: dict[str, KVCacheSpec] = {"a": KVCacheSpec(16), "b": MAMBA}
    specs = UniformTypeKVCacheSpecs(16, given)
    given["c"] = KVCacheSpec(16)
    assert ["a", "b"] == list(specs.kv_cache_specs)
    turned = UniformTypeKVCacheSpecs(16, {"b": MAMBA, "a": KVCacheSpec(16)})
    assert specs == turned
    assert hash(specs) == hash(turned)


def test_copies_with_new_block_sizes() -> None:
    """The block size changes and nothing else; of a uniform spec all block sizes."""
    window = SlidingWindowSpec(*FIELDS, 8)
    assert SlidingWindowSpec(32, 3, 5, np.float16, 8) == window.copy_with_new_block_size(32)
    assert dataclasses.replace(MAMBA, block_size=8) == MAMBA.copy_with_new_block_size(np.int64(8))
    specs = UniformTypeKVCacheSpecs(16, {"a": window, "b": MAMBA})
    copied = specs.copy_with_new_block_size(32)
    assert 32 == copied.block_size == copied.kv_cache_specs["a"].block_size
    assert 2 * PAGE + MAMBA.page_size_bytes == copied.page_size_bytes
    assert specs.block_size == specs.kv_cache_specs["a"].block_size == 16


def test_configurations_are_plain() -> None:
    """Tensors, groups and configurations are mutable, compare by value and check nothing."""
    tensor, group = KVCacheTensor(-1, "nobody"), KVCacheGroupSpec([], None)
    config = KVCacheConfig(num_blocks=0, kv_cache_tensors=[tensor], kv_cache_groups=[group])
    assert KVCacheConfig(0, [KVCacheTensor(-1, "nobody")], [KVCacheGroupSpec([], None)]) == config
    config.num_blocks, tensor.size, group.kv_cache_spec = 3, 5, MAMBA
    assert (3, 5, MAMBA) == (
        config.num_blocks,
        config.kv_cache_tensors[0].size,
        config.kv_cache_groups[0].kv_cache_spec,
    )
