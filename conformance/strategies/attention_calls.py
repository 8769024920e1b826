"""Calls of the functions that split, rewrite and reorder a batch, with an attention layer."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.attention import Example, layers
from conformance.strategies.batch import Batch, is_padded
from conformance.strategies.batch_order import InputBatch, SchedulerOutput
from conformance.strategies.fast_prefill import logits_tokens
from conformance.strategies.ubatch import cuts, slices_between
from conformance.values.call import Call


def _points(draw: st.DrawFn, preset: Preset, batch: Batch, total: int) -> list[int]:
    """Draw the split points of a batch: anywhere if it is causal, else between requests."""
    longest = max(batch.query_lens, default=0)
    if not batch.causal:
        edges = sorted({s for s in batch.starts if 0 < s < total})
        return sorted(draw(st.sets(st.sampled_from(edges), min_size=1))) if edges else []
    maximum = draw(st.sampled_from((1, 2, 0)))
    if maximum and longest > maximum:
        # `maximum` cuts inside the longest request.
        inside = draw(st.sets(st.integers(1, longest - 1), min_size=maximum, max_size=maximum))
        start = batch.starts[batch.query_lens.index(longest)]
        return sorted(start + point for point in inside)
    found: list[int] = draw(cuts(preset, total, batch.query_lens))
    return found


@st.composite
def cut_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `split_attn_metadata`; the tokens may include padding."""
    layer = draw(layers(preset))
    batch = layer.batch
    total = batch.num_actual_tokens if is_padded(batch) else batch.num_tokens
    slices = slices_between(batch, _points(draw, preset, batch, total)) if batch.num_tokens else []
    arguments = {"ubatch_slices": slices, "common_attn_metadata": batch.metadata()}
    return Example(layer, Call("split_attn_metadata", arguments, batch))


@st.composite
def sliced_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `_make_metadata_with_slice`; without tokens, the slice is None."""
    example = draw(cut_layers(preset))
    slices = example.call.arguments["ubatch_slices"]
    arguments = {
        "ubatch_slice": draw(st.sampled_from(slices)) if slices else None,
        "attn_metadata": example.call.arguments["common_attn_metadata"],
    }
    return Example(example.layer, Call("_make_metadata_with_slice", arguments, example.batch))


@st.composite
def scheduled_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `create_ubatch_slices`; a batch without tokens cannot be split."""
    layer = draw(layers(preset))
    batch = layer.batch
    arguments = {
        "num_scheduled_tokens": guarded(batch.query_lens, np.int32, batch.stride),
        "split_points": _points(draw, preset, batch, batch.num_tokens),
    }
    return Example(layer, Call("create_ubatch_slices", arguments, batch))


@st.composite
def chunked_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `make_local_attention_virtual_batches` for layers that attend in chunks."""
    layer = draw(layers(preset, is_causal=True))
    size = layer.batch.layout.block_size
    chunk = size * draw(st.sampled_from((*preset.chunk_blocks, 1)))
    layer = dataclasses.replace(layer, window=None, chunk=chunk)
    arguments = {
        "attn_chunk_size": chunk,
        "common_attn_metadata": layer.batch.metadata(),
        "block_size": size,
    }
    return Example(layer, Call("make_local_attention_virtual_batches", arguments, layer.batch))


@st.composite
def fast_prefill_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of fast prefill: the tokens with logits are the last of their requests."""
    kind = draw(st.sampled_from(("mixed", "extend", "mixed", "extend", "prefill")))
    layer = draw(layers(preset, is_causal=True, kind=kind))
    batch = layer.batch
    which = draw(st.sampled_from(("last of each", "ends", "ends", "last of some")))
    indices = logits_tokens(batch, which, layer.seed)
    metadata = dataclasses.replace(
        batch.metadata(),
        logits_indices_padded=guarded([*indices, 0], np.int64, batch.stride),
        num_logits_indices=len(indices),
    )
    if metadata.max_query_len == 1 or draw(st.sampled_from((False,) * 5 + (True,))):
        indices = list(range(batch.num_actual_tokens))
        metadata = batch.metadata()
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    call = Call(name, {"common_attn_metadata": metadata}, batch)
    return Example(layer, call, tuple(indices))


@st.composite
def unpadded_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `CommonAttentionMetadata.unpadded` that remove padding, or more."""
    layer = draw(layers(preset))
    batch = layer.batch
    busy = max((i + 1 for i, q in enumerate(batch.query_lens) if q), default=0)
    num_reqs = draw(st.integers(0, batch.num_reqs)) if draw(st.booleans()) else busy
    room = batch.num_actual_tokens - batch.starts[num_reqs]
    arguments = {
        "self": batch.metadata(),
        "num_actual_tokens": batch.starts[num_reqs] + draw(st.sampled_from((0, 0, room))),
        "num_actual_reqs": num_reqs,
    }
    return Example(layer, Call("CommonAttentionMetadata.unpadded", arguments, batch))


@st.composite
def misordered_layers(draw: st.DrawFn, preset: Preset) -> Example:
    """Draw calls of `reorder_batch_to_split_decodes_and_prefills` of a layer's batch."""
    layer = draw(layers(preset, kind=draw(st.sampled_from(("mixed", "mixed", "mixed", "extend")))))
    batch = layer.batch
    names = [f"r{i}" for i in range(batch.num_reqs)]
    # With these thresholds, a request just counts as a decode, and follows a longer one.
    lens = batch.query_lens
    shorter = [q for i, q in enumerate(lens) if 1 < q < max(lens[:i], default=0)]
    computed = np.array(batch.num_computed_tokens, np.int32)
    scheduled = dict(zip(names, batch.query_lens, strict=True))
    arguments = {
        "input_batch": InputBatch(names, computed, np.zeros_like(computed)),
        "scheduler_output": SchedulerOutput(scheduled),
        "decode_threshold": draw(st.sampled_from((1, *shorter, *shorter))),
    }
    name = "reorder_batch_to_split_decodes_and_prefills"
    return Example(layer, Call(name, arguments, batch))
