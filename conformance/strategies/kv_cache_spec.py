"""KV cache specs of every kind, as objects and as constructor arguments."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from hypothesis.strategies import SearchStrategy

import reference
from conformance.coverage.presets import MINIMAL, Preset
from conformance.strategies import cached as st
from conformance.strategies.repeated import repeated
from conformance.values.call import Arguments, Call

BLOCK_SIZE: Final = "block size"
HEADS: Final = "heads"
HEAD_SIZE: Final = "head size"
WINDOW: Final = "window"
CHUNK_SIZE: Final = "chunk size"
STATES: Final = "states"
STATE_LENGTH: Final = "length of a state"
PADDED_PAGE: Final = "bytes of a padded page"
SPECULATIVE_BLOCKS: Final = "speculative blocks"
SPECS: Final = "specs"
MODEL_LENGTH: Final = "length of the model"
STEP_TOKENS: Final = "tokens of a step"
ENCODER_TOKENS: Final = "encoder tokens"
RANKS: Final = "context-parallel ranks"
NEW_BLOCK_SIZE: Final = "new block size"

Dtype: TypeAlias = "np.dtype[Any]"

DTYPES: tuple[Dtype, ...] = tuple(
    np.dtype(scalar)
    for scalar in (
        *(np.float16, ml_dtypes.bfloat16, np.float32, np.int8, np.uint8),
        *(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
)
"""Dtypes of caches."""

FULL = ("FullAttentionSpec", "MLAAttentionSpec")
BOUNDED = ("SlidingWindowSpec", "ChunkedLocalAttentionSpec", "CrossAttentionSpec")
ATTENTION = ("AttentionSpec", *FULL, *BOUNDED, "EncoderOnlyAttentionSpec")
KINDS = ("KVCacheSpec", *ATTENTION, "MambaSpec")
UNIFORM = "UniformTypeKVCacheSpecs"

KINDS_ALONG: Final = {
    **dict.fromkeys((HEADS, HEAD_SIZE), ("FullAttentionSpec", "SlidingWindowSpec")),
    **dict.fromkeys((WINDOW, STEP_TOKENS), ("SlidingWindowSpec",)),
    CHUNK_SIZE: ("ChunkedLocalAttentionSpec",),
    ENCODER_TOKENS: ("CrossAttentionSpec",),
    **dict.fromkeys((MODEL_LENGTH, RANKS), FULL),
    **dict.fromkeys((STATES, STATE_LENGTH, PADDED_PAGE, SPECULATIVE_BLOCKS), ("MambaSpec",)),
    SPECS: (UNIFORM,),
}
"""The kinds of specs that can be large along an axis; along other axes, all kinds can."""


def class_of(call: Call) -> str:
    """Return the name of the class whose constructor or method is called."""
    return call.function.split(".", maxsplit=1)[0]


def kind_of(spec: Any) -> str:
    """Return the kind of a spec; of a uniform spec, the kind of its first layer."""
    first = next(iter(getattr(spec, "kv_cache_specs", {"": spec}).values()))
    return type(first).__name__


CACHE_DTYPES = ("fp8_ds_mla", "auto", "fp8_ds_mla", "fp8", None)
"""Names of cache formats."""


def dtypes(draw: st.DrawFn) -> Any:
    """Draw a dtype of a cache, as a dtype or as a scalar type."""
    dtype = draw(st.sampled_from(DTYPES))
    return dtype if draw(st.booleans()) else dtype.type


def sizes(preset: Preset) -> SearchStrategy[int]:
    """Return sizes of a spec: heads, head sizes, windows; some past 2**31."""
    if preset is MINIMAL:
        return st.integers(1, 5)
    return st.one_of(st.integers(1, 128), st.sampled_from((64, 128, 576, 8192, 2**31, 2**40)))


def block_sizes(preset: Preset) -> SearchStrategy[int]:
    """Return block sizes, powers of two or not."""
    odd = (3, 5) if preset is MINIMAL else (48, 544)
    return preset.sizes(BLOCK_SIZE, st.sampled_from((*preset.block_sizes, *odd)))


def attention_fields(draw: st.DrawFn, preset: Preset, kind: str) -> Arguments:
    """Draw the fields of an attention spec; those with a default may be left out."""
    found: Arguments = {
        "block_size": draw(block_sizes(preset)),
        "num_kv_heads": draw(preset.sizes(HEADS, sizes(preset))),
        "head_size": draw(preset.sizes(HEAD_SIZE, sizes(preset))),
        "dtype": dtypes(draw),
    }
    if kind in FULL:
        for field in ("sliding_window", "attention_chunk_size"):
            if draw(st.booleans()):
                found[field] = draw(sizes(preset)) if draw(st.booleans()) else None
    if kind == "MLAAttentionSpec" and draw(st.MOSTLY):
        found["cache_dtype_str"] = draw(st.sampled_from(CACHE_DTYPES))
    if kind == "SlidingWindowSpec":
        found["sliding_window"] = draw(preset.sizes(WINDOW, sizes(preset)))
    if kind == "ChunkedLocalAttentionSpec":
        found["attention_chunk_size"] = draw(preset.sizes(CHUNK_SIZE, sizes(preset)))
    return found


def states(draw: st.DrawFn, page_size: int, *, fills: bool = False) -> tuple[Any, Any]:
    """Draw shapes and dtypes of Mamba states that fit in a page, or fill it, each aligned."""
    shapes: list[tuple[int, ...]] = []
    kinds: list[Dtype] = []
    offset = 0
    for _ in range(draw(st.integers(1, 3))):
        fitting = [
            dtype
            for dtype in DTYPES
            if offset % dtype.itemsize == page_size % dtype.itemsize == 0
            and offset + dtype.itemsize <= page_size
        ]
        if not fitting:
            break
        dtype = draw(st.sampled_from(fitting))
        room = (page_size - offset) // dtype.itemsize
        rows = draw(st.integers(1, min(room, 4)))
        columns = draw(st.integers(1, room // rows))
        shape = draw(st.sampled_from([(rows,), (rows, columns), (rows, 1, columns), ()]))
        shapes.append(shape)
        kinds.append(dtype)
        offset += math.prod(shape) * dtype.itemsize
    if fills and offset < page_size:
        shapes.append((page_size - offset,))
        kinds.append(np.dtype(np.int8))
    return tuple(shapes), tuple(kinds)


def mamba_fields(draw: st.DrawFn, preset: Preset) -> Arguments:
    """Draw the fields of a `MambaSpec`."""
    page_size = draw(st.integers(4, 64)) if preset is MINIMAL else draw(st.integers(64, 2**20))
    shapes, kinds = states(draw, page_size)
    if preset.axis == STATE_LENGTH:
        shapes, kinds = ((2, draw(preset.sizes(STATE_LENGTH, st.nothing())), 1),), DTYPES[:1]
    pairs = repeated(draw, preset, STATES, list(zip(shapes, kinds, strict=True)))
    shapes, kinds = tuple(shape for shape, _ in pairs), tuple(kind for _, kind in pairs)
    if draw(st.booleans()):
        shapes = draw(st.sampled_from((list, tuple)))(list(shape) for shape in shapes)
        kinds = [dtype.type for dtype in kinds]
    found: Arguments = {"block_size": draw(block_sizes(preset)), "shapes": shapes, "dtypes": kinds}
    minimum = sum(
        math.prod(shape) * np.dtype(dtype).itemsize
        for shape, dtype in zip(shapes, kinds, strict=True)
    )
    if draw(st.MOSTLY):
        padded = (None, minimum, minimum + 1, max(page_size, minimum))
        found["page_size_padded"] = draw(st.sampled_from(padded))
    if preset.axis == PADDED_PAGE:
        length = draw(preset.sizes(PADDED_PAGE, st.nothing()))
        found |= {"shapes": ((1,),), "dtypes": (np.dtype(np.int8),), "page_size_padded": length}
    if draw(st.booleans()):
        found["mamba_type"] = draw(st.sampled_from(("mamba1", "mamba2", "short_conv")))
    if draw(st.booleans()) or preset.axis == SPECULATIVE_BLOCKS:
        found["num_speculative_blocks"] = draw(preset.sizes(SPECULATIVE_BLOCKS, st.integers(0, 3)))
    return found


def fields(draw: st.DrawFn, preset: Preset, kind: str) -> Arguments:
    """Draw the fields of a spec of a kind."""
    if kind == UNIFORM:
        specs = uniform_specs(draw, preset)
        return {"block_size": next(iter(specs.values())).block_size, "kv_cache_specs": specs}
    if kind == "MambaSpec":
        return mamba_fields(draw, preset)
    if kind == "KVCacheSpec":
        return {"block_size": draw(block_sizes(preset))}
    return attention_fields(draw, preset, kind)


def spec_of(draw: st.DrawFn, /, preset: Preset, *kinds: str, **fixed: Any) -> Any:
    """Draw a spec of one of these kinds (default: all but the base), with some fields fixed."""
    kind = draw(st.sampled_from(kinds or (*ATTENTION, "MambaSpec", UNIFORM)))
    found = {**fields(draw, preset, kind), **fixed}
    return getattr(reference, kind)(**found)


specs = st.composite(spec_of)


UNIFORM_FIELD = {
    "FullAttentionSpec": None,
    "CrossAttentionSpec": None,
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "attention_chunk_size",
    "MambaSpec": "num_speculative_blocks",
}
"""The kinds that can be uniform, and the field that must be the same in all layers."""


def uniform_specs(draw: st.DrawFn, preset: Preset) -> dict[str, Any]:
    """Draw the specs of layers that are of one kind and one block size, by layer name."""
    kind = draw(st.sampled_from(("FullAttentionSpec", *UNIFORM_FIELD)))
    kinds = FULL if kind == "FullAttentionSpec" else (kind,)
    block_size = draw(block_sizes(preset))
    fixed: dict[str, Any] = {"block_size": block_size}
    field = UNIFORM_FIELD[kind]
    if field:
        fixed[field] = draw(st.integers(1, 5))
    drawn = [spec_of(draw, preset, *kinds, **fixed) for _ in range(draw(st.integers(1, 3)))]
    specs = repeated(draw, preset, SPECS, drawn)
    return {f"layers.{i}.attn": spec for i, spec in enumerate(specs)}


CHANCES = st.integers(0, 2**16)
"""Seeds that decide if an invalid input replaces the drawn spec by one of another kind."""

EXAMPLES: dict[str, Any] = {
    "KVCacheSpec": reference.KVCacheSpec(2),
    "AttentionSpec": reference.AttentionSpec(2, 1, 3, np.float16),
    "FullAttentionSpec": reference.FullAttentionSpec(2, 1, 3, np.float16),
    "MLAAttentionSpec": reference.MLAAttentionSpec(2, 1, 3, np.float16),
    "SlidingWindowSpec": reference.SlidingWindowSpec(2, 1, 3, np.float16, 4),
    "ChunkedLocalAttentionSpec": reference.ChunkedLocalAttentionSpec(2, 1, 3, np.float16, 4),
    "CrossAttentionSpec": reference.CrossAttentionSpec(2, 1, 3, np.float16),
    "EncoderOnlyAttentionSpec": reference.EncoderOnlyAttentionSpec(2, 1, 3, np.float16),
    "MambaSpec": reference.MambaSpec(2, ((3,),), (np.float16,)),
}
"""A spec of each kind."""


def constructor_calls(*kinds: str) -> Any:
    """Return the strategy of calls that make specs of kinds, by preset."""

    @st.composite
    def calls(draw: st.DrawFn, preset: Preset) -> Call:
        kind = draw(st.sampled_from(KINDS_ALONG.get(preset.axis, kinds)))
        return Call(kind, fields(draw, preset, kind), draw(CHANCES))

    return calls


@st.composite
def page_size_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of the property `page_size_bytes`."""
    usual = ("MLAAttentionSpec", "MLAAttentionSpec", UNIFORM)
    kinds = (*ATTENTION, "MambaSpec", *usual)
    spec = spec_of(draw, preset, *KINDS_ALONG.get(preset.axis, kinds))
    return Call(f"{type(spec).__name__}.page_size_bytes", {"self": spec})


@st.composite
def copy_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `copy_with_new_block_size`."""
    spec = spec_of(draw, preset, *KINDS_ALONG.get(preset.axis, (*KINDS, UNIFORM, UNIFORM)))
    usual = st.one_of(block_sizes(preset), sizes(preset))
    arguments = {"self": spec, "block_size": draw(preset.sizes(NEW_BLOCK_SIZE, usual))}
    return Call(f"{type(spec).__name__}.copy_with_new_block_size", arguments)


@st.composite
def configs(draw: st.DrawFn, preset: Preset) -> reference.VllmConfig:
    """Draw an engine configuration with the fields that specs read."""
    lengths = st.integers(1, 24 if preset is MINIMAL else 2**20)
    if preset.axis:  # a length that bounds nothing
        lengths = st.just(2**70)
    parallel = st.sampled_from((1, 1, 2, 3, 8))
    return reference.VllmConfig(
        model_config=reference.ModelConfig(max_model_len=draw(preset.sizes(MODEL_LENGTH, lengths))),
        cache_config=reference.CacheConfig(
            mamba_cache_mode=draw(st.sampled_from(("none", "align", "all")))
        ),
        parallel_config=reference.ParallelConfig(
            tensor_parallel_size=draw(st.sampled_from((1, 4))),
            decode_context_parallel_size=draw(preset.sizes(RANKS, parallel)),
            prefill_context_parallel_size=draw(parallel),
        ),
        scheduler_config=reference.SchedulerConfig(
            max_num_batched_tokens=draw(
                preset.sizes(STEP_TOKENS, st.integers(1, 12 if preset is MINIMAL else 16384))
            ),
            max_num_seqs=draw(st.integers(1, 256)),
            max_num_encoder_input_tokens=draw(
                preset.sizes(ENCODER_TOKENS, st.one_of(st.just(0), lengths))
            ),
        ),
    )


READS = {
    "FullAttentionSpec": ("model_config", "parallel_config"),
    "MLAAttentionSpec": ("model_config", "parallel_config"),
    "SlidingWindowSpec": ("model_config", "parallel_config", "scheduler_config"),
    "ChunkedLocalAttentionSpec": ("model_config", "scheduler_config"),
    "CrossAttentionSpec": ("scheduler_config",),
    "EncoderOnlyAttentionSpec": (),
    "MambaSpec": ("cache_config", "model_config"),
}
"""The parts of a configuration that a kind reads."""


@st.composite
def max_memory_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `max_memory_usage_bytes`; parts that a kind does not read may be None."""
    kinds = (*READS, "SlidingWindowSpec", "MambaSpec", "MambaSpec", UNIFORM)
    spec = spec_of(draw, preset, *KINDS_ALONG.get(preset.axis, kinds))
    config: Any = draw(configs(preset))
    if kind_of(spec) == "SlidingWindowSpec":
        config.parallel_config.decode_context_parallel_size = 1
    if draw(st.booleans()):
        for name in set(vars(config)) - set(READS[kind_of(spec)]):
            setattr(config, name, None)
    arguments: Arguments = {"self": spec, "vllm_config": config}
    return Call(f"{type(spec).__name__}.max_memory_usage_bytes", arguments, draw(CHANCES))
