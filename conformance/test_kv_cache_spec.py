"""What the layers of a model keep in the KV cache: specs of all kinds, merged and uniform."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.coverage.goals import Goals, one_for_each
from conformance.coverage.size_axes import Axes, of_ints, of_objects
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.kv_cache_spec import (
    ATTENTION_INVALID_INPUTS,
    COPY_INVALID_INPUTS,
    MAMBA_INVALID_INPUTS,
    PAGE_SIZE_INVALID_INPUTS,
    UNIFORM_INVALID_INPUTS,
)
from conformance.invalid_inputs.spec_memory import MAX_MEMORY_INVALID_INPUTS, kind_of
from conformance.strategies.kv_cache_spec import (
    ATTENTION,
    BLOCK_SIZE,
    CHUNK_SIZE,
    DTYPES,
    ENCODER_TOKENS,
    FULL,
    HEAD_SIZE,
    HEADS,
    KINDS,
    MODEL_LENGTH,
    NEW_BLOCK_SIZE,
    PADDED_PAGE,
    RANKS,
    READS,
    SPECS,
    SPECULATIVE_BLOCKS,
    STATE_LENGTH,
    STATES,
    STEP_TOKENS,
    UNIFORM,
    UNIFORM_FIELD,
    WINDOW,
    class_of,
    constructor_calls,
    copy_calls,
    max_memory_calls,
    page_size_calls,
    specs,
)
from conformance.targets.target import Target
from conformance.values.call import Call


def _of_dtypes(dtype: Callable[[Call], object]) -> Goals:
    def is_of(known: object) -> Callable[[Call], bool]:
        return lambda call: dtype(call) == known

    return {known.name: is_of(known) for known in DTYPES}


def _given(name: str) -> Callable[[Call], Any]:
    return lambda call: call.get(name)


def _field(name: str) -> Callable[[Call], int]:
    """Return a size function: a field of the spec that a call makes, or is a method of."""

    def size(call: Call) -> int:
        value = call.get(name) if "self" not in call else getattr(call["self"], name, None)
        return int(value or 0)

    return size


def _states(call: Call) -> tuple[Any, ...]:
    shapes = call["shapes"] if "self" not in call else getattr(call["self"], "shapes", ())
    return tuple(shapes)


ATTENTION_AXES: Axes = {
    BLOCK_SIZE: of_ints(_field("block_size"), 1),
    HEADS: of_ints(_field("num_kv_heads"), 1),
    HEAD_SIZE: of_ints(_field("head_size"), 1),
}

STATE_AXES: Axes = {
    STATES: of_objects(lambda call: len(_states(call)), 1),
    STATE_LENGTH: of_ints(
        lambda call: max((max(s, default=1) for s in _states(call)), default=0), 2
    ),
    PADDED_PAGE: of_ints(_field("page_size_padded"), 1),
}

UNIFORM_AXES: Axes = {
    SPECS: of_objects(
        lambda call: len(
            call.get("kv_cache_specs") or getattr(call.get("self"), "kv_cache_specs", ())
        ),
        1,
    )
}

test_attention_specs = Contract(
    "KVCacheSpec",
    constructor_calls("KVCacheSpec", *ATTENTION, *FULL),
    {
        **one_for_each(("KVCacheSpec", *ATTENTION), class_of),
        **_of_dtypes(_given("dtype")),
        "a scalar type for a dtype": lambda call: isinstance(call.get("dtype"), type),
        "a window of full attention": lambda call: (
            class_of(call) in FULL and call.get("sliding_window") is not None
        ),
        "no window of full attention": lambda call: call.get("sliding_window", 0) is None,
        "a number past 2**31": lambda call: (
            max(v for v in call.arguments.values() if isinstance(v, int)) >= 2**31
        ),
    },
    axes={
        **ATTENTION_AXES,
        WINDOW: of_ints(_field("sliding_window"), 1),
        CHUNK_SIZE: of_ints(_field("attention_chunk_size"), 1),
    },
    invalid_inputs=ATTENTION_INVALID_INPUTS,
)


test_mamba_specs = Contract(
    "MambaSpec",
    constructor_calls("MambaSpec"),
    {
        "shapes are lists": lambda call: isinstance(call["shapes"], list),
        "a shape of no axes": lambda call: () in tuple(map(tuple, call["shapes"])),
        "states of several dtypes": lambda call: len(set(call["dtypes"])) > 1,
        "padded": lambda call: (call.get("page_size_padded") or 0) > 0,
        "padded by nothing": lambda call: (
            call.get("page_size_padded")
            == reference.MambaSpec(**{**call.arguments, "page_size_padded": None}).page_size_bytes
        ),
        "scalar types for dtypes": lambda call: isinstance(call["dtypes"][0], type),
        "no speculative blocks": lambda call: call.get("num_speculative_blocks") == 0,
    },
    axes={
        **STATE_AXES,
        BLOCK_SIZE: of_ints(_field("block_size"), 1),
        SPECULATIVE_BLOCKS: of_ints(_field("num_speculative_blocks")),
    },
    invalid_inputs=MAMBA_INVALID_INPUTS,
)


test_uniform_specs = Contract(
    "UniformTypeKVCacheSpecs",
    constructor_calls(UNIFORM),
    {
        "several specs": lambda call: len(call["kv_cache_specs"]) > 1,
        **one_for_each(
            UNIFORM_FIELD,
            lambda call: type(next(iter(call["kv_cache_specs"].values()))).__name__,
        ),
    },
    axes=UNIFORM_AXES,
    invalid_inputs=UNIFORM_INVALID_INPUTS,
    compares_views=True,
    takes_objects=True,
)


test_page_size_bytes = Contract(
    "KVCacheSpec.page_size_bytes",
    page_size_calls,
    {
        **one_for_each((*ATTENTION, "MambaSpec", UNIFORM), class_of),
        **_of_dtypes(lambda call: getattr(call["self"], "dtype", None)),
        "fp8_ds_mla": lambda call: getattr(call["self"], "cache_dtype_str", None) == "fp8_ds_mla",
        "another cache format": lambda call: (
            getattr(call["self"], "cache_dtype_str", None) in {"auto", "fp8"}
        ),
        "a padded page": lambda call: getattr(call["self"], "page_size_padded", None) is not None,
    },
    axes={**ATTENTION_AXES, **STATE_AXES, **UNIFORM_AXES},
    invalid_inputs=PAGE_SIZE_INVALID_INPUTS,
)


def _config(call: Call, path: str) -> Any:
    part, name = path.split(".")
    return getattr(getattr(call["vllm_config"], part), name, None)


def _read(path: str) -> Callable[[Call], int]:
    return lambda call: int(_config(call, path) or 0)


def _limit(call: Call) -> int:
    """Return the most tokens that a bounded kind keeps of a long request; 0 for other kinds."""
    spec, kind = call["self"], kind_of(call)
    step = _config(call, "scheduler_config.max_num_batched_tokens")
    if class_of(call) == UNIFORM or kind not in {"SlidingWindowSpec", "ChunkedLocalAttentionSpec"}:
        return 0
    if kind == "SlidingWindowSpec":
        return int(spec.sliding_window - 1 + step)
    return int(spec.attention_chunk_size + step)


def _ranks(call: Call) -> int:
    if kind_of(call) not in FULL:
        return 1
    dcp = _config(call, "parallel_config.decode_context_parallel_size")
    return int(dcp * _config(call, "parallel_config.prefill_context_parallel_size"))


def _is_in_mode(mode: str) -> Callable[[Call], bool]:
    return lambda call: (
        kind_of(call) == "MambaSpec" and _config(call, "cache_config.mamba_cache_mode") == mode
    )


test_max_memory_usage_bytes = Contract(
    "KVCacheSpec.max_memory_usage_bytes",
    max_memory_calls,
    {
        **one_for_each((*READS, UNIFORM), class_of),
        "bounded by the window or chunk": lambda call: (
            0 < _limit(call) < _config(call, "model_config.max_model_len")
        ),
        "bounded by the model's length": lambda call: (
            _limit(call) > (_config(call, "model_config.max_model_len") or 2**60)
        ),
        "a length that ends inside a block": lambda call: (
            kind_of(call) in FULL
            and _ranks(call) == 1
            and _config(call, "model_config.max_model_len") % call["self"].block_size != 0
        ),
        "context parallelism of both kinds": lambda call: (
            kind_of(call) in FULL
            and _config(call, "parallel_config.decode_context_parallel_size") > 1
            and _config(call, "parallel_config.prefill_context_parallel_size") > 1
        ),
        "a length that ranks share unevenly": lambda call: (
            _ranks(call) > 1 and _config(call, "model_config.max_model_len") % _ranks(call) != 0
        ),
        "no encoder tokens": lambda call: (
            kind_of(call) == "CrossAttentionSpec"
            and _config(call, "scheduler_config.max_num_encoder_input_tokens") == 0
        ),
        **{f"Mamba in mode {mode}": _is_in_mode(mode) for mode in ("none", "align", "all")},
        "what is not read is not there": lambda call: (
            None in vars(call["vllm_config"]).values()
            and call["vllm_config"].parallel_config is None
        ),
        "uniform specs of different pages": lambda call: (
            len(
                {
                    spec.page_size_bytes
                    for spec in getattr(call["self"], "kv_cache_specs", {}).values()
                }
            )
            > 1
        ),
    },
    axes={
        **ATTENTION_AXES,
        **UNIFORM_AXES,
        WINDOW: of_ints(_field("sliding_window"), 1),
        CHUNK_SIZE: of_ints(_field("attention_chunk_size"), 1),
        MODEL_LENGTH: of_ints(_read("model_config.max_model_len"), 1),
        STEP_TOKENS: of_ints(_read("scheduler_config.max_num_batched_tokens"), 1),
        ENCODER_TOKENS: of_ints(_read("scheduler_config.max_num_encoder_input_tokens")),
        RANKS: of_ints(_read("parallel_config.decode_context_parallel_size"), 1),
    },
    invalid_inputs=MAX_MEMORY_INVALID_INPUTS,
)


test_copy_with_new_block_size = Contract(
    "KVCacheSpec.copy_with_new_block_size",
    copy_calls,
    {
        **one_for_each((*KINDS, UNIFORM), class_of),
        "the same block size": lambda call: call["block_size"] == call["self"].block_size,
        "no divisor and no multiple": lambda call: (
            call["block_size"] % call["self"].block_size != 0
            and call["self"].block_size % call["block_size"] != 0
        ),
    },
    axes={
        NEW_BLOCK_SIZE: of_ints(lambda call: call["block_size"], 1),
        BLOCK_SIZE: of_ints(_field("block_size"), 1),
        **UNIFORM_AXES,
    },
    invalid_inputs=COPY_INVALID_INPUTS,
)


def _converted(target: Target, value: Any) -> Any:
    """Return a target's copy of a value."""
    return target.converter().convert(value, "value")


@property_check("KVCacheSpec", lambda preset: specs(preset, *KINDS))
def test_equal_specs_hash_alike(target: Target, spec: Any) -> None:
    """Equal specs have equal hashes, and specs are frozen."""
    made = _converted(target, spec)
    other = target.of(made, "copy_with_new_block_size", spec.block_size + 1)
    first, second = (target.own(_converted(target, spec)) for _ in range(2))
    assert first == second
    assert {first: "found"}[second] == "found"
    assert first != target.own(other)
    if target.validates:
        with pytest.raises(dataclasses.FrozenInstanceError):
            first.block_size = 1


@property_check("MambaSpec", lambda preset: specs(preset, "MambaSpec"))
def test_a_page_holds_its_states(target: Target, spec: Any) -> None:
    """Lists and tuples make equal specs; the states fit in a page, and fill an unpadded one."""
    made = _converted(target, spec)
    given = {**vars(made), "shapes": [list(shape) for shape in spec.shapes]}
    lists = target.own(target.call("MambaSpec", **{**given, "dtypes": [*made.dtypes]}))
    assert target.own(made) == lists
    assert hash(target.own(made)) == hash(lists)
    page_size_bytes = target.of(made, "page_size_bytes")
    needed = sum(
        np.zeros(shape, dtype).nbytes for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
    )
    assert needed <= page_size_bytes
    if spec.page_size_padded is None:
        assert needed == page_size_bytes


@property_check(
    "KVCacheSpec.page_size_bytes", lambda preset: specs(preset, "MLAAttentionSpec", *ATTENTION)
)
def test_a_page_holds_its_keys_and_values(target: Target, spec: Any) -> None:
    """A page is as large as its keys and values, and every token takes equally many bytes."""
    one_token, page = (
        target.of(_converted(target, one), "page_size_bytes")
        for one in (dataclasses.replace(spec, block_size=1), spec)
    )
    assert spec.block_size * one_token == page
    if getattr(spec, "cache_dtype_str", None) != "fp8_ds_mla":
        elements = spec.num_kv_heads * spec.head_size * (1 if _is_mla(spec) else 2)
        assert elements * np.zeros(1, spec.dtype).nbytes == one_token


def _is_mla(spec: Any) -> bool:
    return isinstance(spec, reference.MLAAttentionSpec)


@property_check("KVCacheSpec.max_memory_usage_bytes", max_memory_calls)
def test_memory_is_whole_pages_and_no_more_than_needed(target: Target, call: Call) -> None:
    """The memory is whole pages, and with one page less a request might not fit."""
    invocation = Invocation(target, call)
    made = invocation.arguments["self"]
    pages, rest = divmod(invocation.run(), target.of(made, "page_size_bytes"))
    assert rest == 0
    spec, kind = call["self"], kind_of(call)
    if class_of(call) == UNIFORM:
        config = invocation.arguments["vllm_config"]
        of_each = [
            target.of(inner, "max_memory_usage_bytes", config) / target.of(inner, "page_size_bytes")
            for inner in made.kv_cache_specs.values()
        ]
        assert max(of_each) == pages
    elif kind in FULL:
        length = _config(call, "model_config.max_model_len")
        tokens_of_a_page = spec.block_size * _ranks(call)
        assert (pages - 1) * tokens_of_a_page < length <= pages * tokens_of_a_page
    elif kind == "SlidingWindowSpec":
        length = min(_limit(call), _config(call, "model_config.max_model_len"))
        starts = range(min(spec.block_size, 16))
        touched = [(start + length - 1) // spec.block_size + 1 for start in starts]
        assert max(touched) <= pages <= touched[0] + 1


@property_check("KVCacheSpec.copy_with_new_block_size", copy_calls)
def test_a_copy_differs_in_its_block_size_alone(target: Target, call: Call) -> None:
    """Copying back restores the spec; pages of attention scale with the block, Mamba's do not."""
    invocation = Invocation(target, call)
    spec, copy = invocation.arguments["self"], invocation.run()
    assert call["block_size"] == copy.block_size
    assert spec == target.of(copy, "copy_with_new_block_size", spec.block_size)
    inner = getattr(copy, "kv_cache_specs", {})
    assert {call["block_size"]} >= {one.block_size for one in inner.values()}
    if kind_of(call) in ATTENTION:
        scaled = target.of(copy, "page_size_bytes") * spec.block_size
        assert target.of(spec, "page_size_bytes") * copy.block_size == scaled
    elif kind_of(call) == "MambaSpec":
        assert target.of(spec, "page_size_bytes") == target.of(copy, "page_size_bytes")
