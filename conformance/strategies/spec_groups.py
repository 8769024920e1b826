"""Calls that merge the specs of a group's layers, or check that they are uniform."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import reference
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.kv_cache_spec import (
    CHANCES,
    FULL,
    KINDS,
    SPECS,
    UNIFORM,
    UNIFORM_FIELD,
    block_sizes,
    sizes,
    spec_of,
    specs,
    uniform_specs,
)
from conformance.strategies.repeated import repeated
from conformance.values.call import Arguments, Call

LAYERS: Final = "layers"
NUMBER: Final = "bytes or blocks"


@st.composite
def container_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of the three classes that describe a model's cache, which check nothing."""
    names: Any = draw(st.sampled_from((["layers.0.attn", "layers.1.attn"], [], "no list", None)))
    if preset.axis == LAYERS:
        names = [f"layers.{i}" for i in range(draw(preset.sizes(LAYERS, st.nothing())))]
    usual = preset.sizes(NUMBER, st.sampled_from((4, 0, -1, 9, 2**40)))
    spec = draw(st.one_of(specs(preset), st.none()))
    arguments: dict[str, Arguments] = {
        "KVCacheTensor": {"size": draw(usual), "shared_by": names},
        "KVCacheGroupSpec": {"layer_names": names, "kv_cache_spec": spec},
        "KVCacheConfig": {
            "num_blocks": draw(usual),
            "kv_cache_tensors": []
            if preset.axis
            else [reference.KVCacheTensor(4, ["layers.0.attn"])],
            "kv_cache_groups": names,
        },
    }
    kinds = [kind for kind in arguments if preset.axis != NUMBER or kind != "KVCacheGroupSpec"]
    kind = draw(st.sampled_from(kinds))
    return Call(kind, arguments[kind])


MERGED = (*KINDS, *FULL, *FULL, "SlidingWindowSpec", "AttentionSpec", UNIFORM, UNIFORM)
"""Kinds to merge; those that are easy to merge wrongly are listed more than once."""


LIMITED = (
    *((False, True), (True,), (False, True, False, True), (True, False), (False, False)),
    *((False, False, True), (True, True)),
)
"""Which of the specs to merge have a window or a chunk size."""


@st.composite
def merge_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `merge`: equal specs, and full-attention ones with and without a window."""
    kind = draw(st.sampled_from(MERGED))
    spec = spec_of(draw, preset, kind)
    merged = [dataclasses.replace(spec) for _ in range(draw(st.integers(1, 3)))]
    if kind in FULL:
        limit = draw(st.sampled_from(("sliding_window", "attention_chunk_size")))
        free = {"sliding_window": None, "attention_chunk_size": None}
        limited = free | {limit: draw(sizes(preset))}
        are_limited = draw(st.sampled_from(LIMITED))
        merged = [
            dataclasses.replace(spec, **(limited if is_so else free)) for is_so in are_limited
        ]
    merged = repeated(draw, preset, SPECS, merged)
    return Call(f"{kind}.merge", {"specs": merged}, draw(CHANCES))


def spec_dicts(draw: st.DrawFn, preset: Preset) -> dict[str, Any]:
    """Draw specs by layer name, of one uniform type or nearly so."""
    found: dict[str, Any] = uniform_specs(draw, preset)
    if draw(st.sampled_from((False, False, False, False, True))):
        # Block sizes are compared first, so the kind of the first spec does not matter.
        first = spec_of(draw, preset, "EncoderOnlyAttentionSpec", "AttentionSpec")
        other = first.copy_with_new_block_size(first.block_size + 1)
        return {"layers.7.attn": first, **found, "layers.8.attn": other}
    last = next(reversed(found.values()))
    field = UNIFORM_FIELD.get(type(last).__name__)
    if field and draw(st.booleans()):
        # Of one kind, with different values of that field.
        other = dataclasses.replace(last, **{field: getattr(last, field) + 1})
        return {**found, "layers.7.attn": other}
    number = draw(st.integers(0, 2))
    block_size = next(iter(found.values())).block_size
    for name in ("layers.8.attn", "layers.9.attn")[:number]:
        if draw(st.booleans()):
            kinds = (*UNIFORM_FIELD, "MLAAttentionSpec", "EncoderOnlyAttentionSpec")
            found[name] = spec_of(draw, preset, *kinds, block_size=block_size)
        else:
            spec = draw(st.sampled_from(tuple(found.values())))
            found[name] = spec.copy_with_new_block_size(draw(block_sizes(preset)))
    return found


def uniform_calls(method: str) -> Any:
    """Return the strategy of calls of `is_uniform_type` or `from_specs`, by preset."""

    @st.composite
    def calls(draw: st.DrawFn, preset: Preset) -> Call:
        return Call(f"{UNIFORM}.{method}", {"specs": spec_dicts(draw, preset)})

    return calls
