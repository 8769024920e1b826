"""Specs of a group's layers: which of them merge, and which are of one uniform type."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import ml_dtypes
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
    """Specs that match merge into one, with the one window or chunk size among them."""
    merged = getattr(twin, cls.__name__).merge(twin.convert(specs))
    assert twin.convert(expected) == merged
    assert type(merged) is getattr(twin, type(expected).__name__)


def test_merge_makes_its_own_class(twin: Any) -> None:
    """Full attention merges an engine's own specs, known by class name, into its own class."""
    near, full, mla = twin.convert([NEAR, FULL, MLA])
    own = type("OwnFull", (type("FullAttentionSpec", (type("KVCacheSpec", (), {}),), {}),), {})()
    for field in dataclasses.fields(near):
        setattr(own, field.name, getattr(near, field.name))
    assert near == twin.FullAttentionSpec.merge([own, full])
    assert twin.UniformTypeKVCacheSpecs.is_uniform_type({"a": own, "b": mla})


@pytest.mark.parametrize(
    ("cls", "specs", "message"),
    [
        *(
            (
                type(spec),
                [spec, spec.copy_with_new_block_size(8)],
                f"specs[1] is {type(spec).__name__}(",
            )
            for spec in (WINDOW, CHUNK, CROSS, ENCODER_ONLY, MAMBA)
        ),
        (reference.KVCacheSpec, [], "specs is empty, expected at least 1 spec"),
        (reference.KVCacheSpec, [FULL, NEAR], "specs[1] is FullAttentionSpec("),
        (reference.KVCacheSpec, [FULL, CROSS], "specs[1] is CrossAttentionSpec("),
        (reference.FullAttentionSpec, [], "specs is empty, expected at least 1 spec"),
        (reference.MLAAttentionSpec, [], "specs is empty, expected at least 1 spec"),
        (
            reference.FullAttentionSpec,
            [FULL, MLA],
            ("specs[1] is of class MLAAttentionSpec, expected FullAttentionSpec without MLA"),
        ),
        (
            reference.FullAttentionSpec,
            [reference.AttentionSpec(*FIELDS)],
            "specs[0] is of class AttentionSpec, expected FullAttentionSpec without MLA",
        ),
        (
            reference.MLAAttentionSpec,
            [MLA, FULL],
            ("specs[1] is of class FullAttentionSpec, expected MLAAttentionSpec"),
        ),
        *(
            (
                reference.FullAttentionSpec,
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
        *(
            (
                reference.FullAttentionSpec,
                specs,
                (
                    f"specs have sliding_window {windows} and attention_chunk_size {chunks}, "
                    "expected at most 1 number in all"
                ),
            )
            for specs, windows, chunks in (
                ([NEAR, FULL, dataclasses.replace(FULL, sliding_window=9)], [8, 9], []),
                ([CHUNKED, dataclasses.replace(FULL, attention_chunk_size=9)], [], [8, 9]),
                ([NEAR, CHUNKED], [8], [8]),
                ([dataclasses.replace(NEAR, attention_chunk_size=9)], [8], [9]),
            )
        ),
        (
            reference.MLAAttentionSpec,
            [MLA, reference.MLAAttentionSpec(*FIELDS)],
            "specs[1].cache_dtype_str is None, unlike 'fp8' of specs[0]",
        ),
        (
            reference.MLAAttentionSpec,
            [MLA, dataclasses.replace(MLA, head_size=6)],
            "specs[1].head_size is 6, unlike 5 of specs[0]",
        ),
    ],
)
def test_refusals_of_merge(twin: Any, cls: type[Any], specs: list[Any], message: str) -> None:
    """Specs that do not match are refused, in these words."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        getattr(twin, cls.__name__).merge(twin.convert(specs))


@pytest.mark.parametrize(
    "cls", [reference.KVCacheSpec, reference.FullAttentionSpec, reference.MLAAttentionSpec]
)
def test_types_of_merge(twin: Any, cls: type[Any]) -> None:
    """A value that is not a list, and an entry that is not a spec, are refused."""
    merge = getattr(twin, cls.__name__).merge
    with twin.refuses("TypeError: specs must be a list, got tuple"):
        merge((twin.convert(MLA),))
    with twin.refuses("TypeError: specs[1] must be a KVCacheSpec, got 'spec' of str"):
        merge([twin.convert(MLA), "spec"])


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
    """Uniform specs have one block size, one kind, and one window, chunk size or similar field."""
    by_layer = {f"layers.{i}": spec for i, spec in enumerate(twin.convert(specs))}
    assert expected is twin.UniformTypeKVCacheSpecs.is_uniform_type(by_layer)
    uniform = twin.UniformTypeKVCacheSpecs.from_specs(by_layer)
    assert (twin.UniformTypeKVCacheSpecs(16, by_layer) if expected else None) == uniform


@pytest.mark.parametrize(
    "first",
    [
        reference.KVCacheSpec(16),
        reference.AttentionSpec(*FIELDS),
        ENCODER_ONLY,
        reference.UniformTypeKVCacheSpecs(16, {"a": FULL}),
    ],
)
def test_kinds_that_are_never_uniform(twin: Any, first: Any) -> None:
    """A first spec of another kind raises a NotImplementedError."""
    for is_uniform in (
        twin.UniformTypeKVCacheSpecs.is_uniform_type,
        twin.UniformTypeKVCacheSpecs.from_specs,
    ):
        with pytest.raises(
            NotImplementedError, match=rf"^specs\['x'\] is of class {type(first).__name__}, "
        ):
            is_uniform(twin.convert({"x": first, "y": FULL}))


def test_refusals_of_uniform_type(twin: Any) -> None:
    """Empty dicts, other types, keys that are no str and values that are no specs are refused."""
    for is_uniform in (
        twin.UniformTypeKVCacheSpecs.is_uniform_type,
        twin.UniformTypeKVCacheSpecs.from_specs,
    ):
        with twin.refuses("ValueError: specs is empty, expected at least 1 spec"):
            is_uniform({})
        with twin.refuses("TypeError: specs must be a dict, got list"):
            is_uniform([twin.convert(FULL)])
        with twin.refuses("TypeError: a key of specs must be a str, got 0 of int"):
            is_uniform({0: twin.convert(FULL)})
        with twin.refuses("TypeError: specs['a'] must be a KVCacheSpec, got None of NoneType"):
            is_uniform({"a": None})
