"""Calls of the functions that take a batch's attention metadata, and of its methods."""

from __future__ import annotations

import dataclasses

import numpy as np

from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batches import batches
from conformance.values.call import Call


@st.composite
def metadata_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw metadata, with or without the optional fields, as the argument `metadata`."""
    batch = draw(batches(preset))
    metadata = batch.metadata()
    if draw(st.booleans()):
        metadata = dataclasses.replace(
            metadata,
            logits_indices_padded=guarded(range(batch.num_tokens), np.int64),
            num_logits_indices=batch.num_tokens,
            encoder_seq_lens=guarded(batch.seq_lens, np.int32, batch.stride),
            dcp_local_seq_lens=guarded([s // 2 for s in batch.seq_lens], np.int32, batch.stride),
        )
    return Call("", {"metadata": metadata}, batch)


@st.composite
def unpadded_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `CommonAttentionMetadata.unpadded`: any number of requests and tokens."""
    call = draw(metadata_calls(preset))
    batch = call.source
    num_reqs = draw(st.one_of(st.just(batch.num_reqs), st.integers(0, batch.num_reqs)))
    minimum = batch.starts[num_reqs]
    num_tokens = draw(st.one_of(st.just(minimum), st.integers(minimum, batch.num_actual_tokens)))
    arguments = {
        "self": call.arguments["metadata"],
        "num_actual_tokens": num_tokens,
        "num_actual_reqs": num_reqs,
    }
    return Call("CommonAttentionMetadata.unpadded", arguments, batch)


@st.composite
def validate_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `CommonAttentionMetadata.validate` on valid metadata."""
    call = draw(metadata_calls(preset))
    block_size = draw(st.sampled_from((None, call.source.layout.block_size)))
    arguments = {"self": call.arguments["metadata"], "block_size": block_size}
    return Call("CommonAttentionMetadata.validate", arguments, call.source)
