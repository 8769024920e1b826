"""Layers of one group: which specs merge into one, and which are of one uniform type."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from reference import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

FIELDS = (16, 3, 5, np.float16)
MAMBA = MambaSpec(16, ((3, 4), (5,)), (np.float16, np.float32))
FULL = FullAttentionSpec(*FIELDS)
NEAR = FullAttentionSpec(*FIELDS, sliding_window=8)
CHUNKED = FullAttentionSpec(*FIELDS, attention_chunk_size=8)
MLA = MLAAttentionSpec(*FIELDS, cache_dtype_str="fp8")


@pytest.mark.parametrize(
    ("cls", "specs", "expected"),
    [
        (KVCacheSpec, [MAMBA, MambaSpec(16, [[3, 4], [5]], MAMBA.dtypes)], MAMBA),
        (SlidingWindowSpec, [SlidingWindowSpec(*FIELDS, 8)] * 3, SlidingWindowSpec(*FIELDS, 8)),
        (FullAttentionSpec, [FULL], FULL),
        (FullAttentionSpec, [FULL, NEAR, FULL, NEAR], NEAR),
        (FullAttentionSpec, [CHUNKED, FULL], CHUNKED),
        (MLAAttentionSpec, [MLA, MLA], MLA),
        (
            MLAAttentionSpec,
            [MLA, dataclasses.replace(MLA, sliding_window=4)],
            dataclasses.replace(MLA, sliding_window=4),
        ),
        (MLAAttentionSpec, [MLAAttentionSpec(*FIELDS)], MLAAttentionSpec(*FIELDS)),
    ],
)
def test_merge(cls: type[KVCacheSpec], specs: list[Any], expected: KVCacheSpec) -> None:
    """Specs that fit become one, with the one window or chunk size found."""
    merged = cls.merge(specs)
    assert expected == merged
    assert type(merged) is type(expected)


def test_merge_makes_its_own_class() -> None:
    """Full attention merges an engine's own specs, told by name, into a spec of the asked class."""
    own = type("OwnFull", (type("FullAttentionSpec", (type("KVCacheSpec", (), {}),), {}),), {})()
    for field in dataclasses.fields(NEAR):
        setattr(own, field.name, getattr(NEAR, field.name))
    assert NEAR == FullAttentionSpec.merge([own, FULL])


@pytest.mark.parametrize(
    ("cls", "specs", "message"),
    [
        (KVCacheSpec, [], "specs is empty, expected at least 1 spec"),
        (KVCacheSpec, [FULL, NEAR], "specs[1] is FullAttentionSpec("),
        (KVCacheSpec, [FULL, CrossAttentionSpec(*FIELDS)], "specs[1] is CrossAttentionSpec("),
        (FullAttentionSpec, [], "specs is empty, expected at least 1 spec"),
        (MLAAttentionSpec, [], "specs is empty, expected at least 1 spec"),
        (
            FullAttentionSpec,
            [FULL, MLA],
            ("specs[1] is of class MLAAttentionSpec, expected FullAttentionSpec without MLA"),
        ),
        (
            FullAttentionSpec,
            [AttentionSpec(*FIELDS)],
            "specs[0] is of class AttentionSpec, expected FullAttentionSpec without MLA",
        ),
        (
            MLAAttentionSpec,
            [MLA, FULL],
            ("specs[1] is of class FullAttentionSpec, expected MLAAttentionSpec"),
        ),
        *(
            (
                FullAttentionSpec,
                [FULL, FULL, dataclasses.replace(FULL, **{field: value})],
                f"specs[2].{field} is {np.dtype(value) if field == 'dtype' else value}",
            )
            for field, value in (
                ("block_size", 32),
                ("num_kv_heads", 4),
                ("head_size", 6),
                ("dtype", ml_dtypes.bfloat16),
            )
        ),
        (
            FullAttentionSpec,
            [NEAR, FULL, dataclasses.replace(FULL, sliding_window=9)],
            (
                "specs have sliding_window [8, 9] and attention_chunk_size [], expected at "
                "most 1 number in all"
            ),
        ),
        (
            FullAttentionSpec,
            [CHUNKED, dataclasses.replace(FULL, attention_chunk_size=9)],
            (
                "specs have sliding_window [] and attention_chunk_size [8, 9], expected at "
                "most 1 number in all"
            ),
        ),
        (
            FullAttentionSpec,
            [NEAR, CHUNKED],
            (
                "specs have sliding_window [8] and attention_chunk_size [8], expected at "
                "most 1 number in all"
            ),
        ),
        (
            FullAttentionSpec,
            [dataclasses.replace(NEAR, attention_chunk_size=9)],
            (
                "specs have sliding_window [8] and attention_chunk_size [9], expected at "
                "most 1 number in all"
            ),
        ),
        (
            MLAAttentionSpec,
            [MLA, MLAAttentionSpec(*FIELDS)],
            "specs[1].cache_dtype_str is None, unlike 'fp8' of specs[0]",
        ),
        (
            MLAAttentionSpec,
            [MLA, dataclasses.replace(MLA, head_size=6)],
            "specs[1].head_size is 6, unlike 5 of specs[0]",
        ),
    ],
)
def test_refusals_of_merge(cls: type[KVCacheSpec], specs: list[Any], message: str) -> None:
    """Specs that do not fit are refused, in these words."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        cls.merge(specs)


@pytest.mark.parametrize("cls", [KVCacheSpec, FullAttentionSpec, MLAAttentionSpec])
def test_types_of_merge(cls: type[KVCacheSpec]) -> None:
    """What is no list, and an entry that is no spec, is refused."""
    with pytest.raises(TypeError, match=r"^specs must be a list, got tuple$"):
        cls.merge((MLA,))
    with pytest.raises(TypeError, match=r"^specs\[1\] must be a KVCacheSpec, got '.*' of str$"):
        cls.merge([MLA, "spec"])


WINDOW = SlidingWindowSpec(*FIELDS, 8)
CHUNK = ChunkedLocalAttentionSpec(*FIELDS, 8)


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([FULL, FullAttentionSpec(16, 7, 9, np.int8), NEAR, MLA], True),
        ([MLA, FULL], True),
        ([FULL, CrossAttentionSpec(*FIELDS)], False),
        ([CrossAttentionSpec(*FIELDS), CrossAttentionSpec(16, 7, 9, np.int8)], True),
        ([CrossAttentionSpec(*FIELDS), FULL], False),
        ([WINDOW, SlidingWindowSpec(16, 7, 9, np.int8, 8)], True),
        ([WINDOW, SlidingWindowSpec(*FIELDS, 9)], False),
        ([WINDOW, NEAR], False),
        ([CHUNK, CHUNK], True),
        ([CHUNK, ChunkedLocalAttentionSpec(*FIELDS, 9)], False),
        ([CHUNK, CHUNKED], False),
        ([MAMBA, MambaSpec(16, ((7,),), (np.int8,))], True),
        ([MAMBA, dataclasses.replace(MAMBA, num_speculative_blocks=1)], False),
        ([MAMBA, FULL], False),
        ([FULL, FULL.copy_with_new_block_size(32)], False),
        ([KVCacheSpec(16), KVCacheSpec(32)], False),
    ],
)
def test_uniform_type(specs: list[KVCacheSpec], expected: bool) -> None:
    """One block size and one kind, with one window, chunk or number of speculative blocks."""
    by_layer = {f"layers.{i}": spec for i, spec in enumerate(specs)}
    assert expected is UniformTypeKVCacheSpecs.is_uniform_type(by_layer)
    uniform = UniformTypeKVCacheSpecs.from_specs(by_layer)
    assert (UniformTypeKVCacheSpecs(16, by_layer) if expected else None) == uniform


@pytest.mark.parametrize(
    "first",
    [
        KVCacheSpec(16),
        AttentionSpec(*FIELDS),
        EncoderOnlyAttentionSpec(*FIELDS),
        UniformTypeKVCacheSpecs(16, {"a": FULL}),
    ],
)
def test_kinds_that_are_never_uniform(first: KVCacheSpec) -> None:
    """A first spec of another kind is not implemented."""
    for ask in (UniformTypeKVCacheSpecs.is_uniform_type, UniformTypeKVCacheSpecs.from_specs):
        with pytest.raises(
            NotImplementedError, match=rf"^specs\['x'\] is of class {type(first).__name__}, "
        ):
            ask({"x": first, "y": FULL})


def test_refusals_of_uniform_type() -> None:
    """No specs, no dict, and what is no name or no spec is refused."""
    for ask in (UniformTypeKVCacheSpecs.is_uniform_type, UniformTypeKVCacheSpecs.from_specs):
        with pytest.raises(ValueError, match=r"^specs is empty, expected at least 1 spec$"):
            ask({})
        with pytest.raises(TypeError, match=r"^specs must be a dict, got list$"):
            ask([FULL])
        with pytest.raises(TypeError, match=r"^a key of specs must be a str, got 0 of int$"):
            ask({0: FULL})
        with pytest.raises(TypeError, match=r"^specs\['a'\] must be a KVCacheSpec, got None"):
            ask({"a": None})
