"""Calls of `make_local_attention_virtual_batches`."""

from __future__ import annotations

import dataclasses

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.metadata import metadata_calls
from conformance.values.call import Call

CHUNK_BLOCKS = "blocks of a chunk"


@st.composite
def local_attention_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `make_local_attention_virtual_batches`; one chunk may be one block."""
    if preset.name == "minimal" and draw(st.SOMETIMES):
        preset = dataclasses.replace(preset, block_sizes=(1,))
    call = draw(metadata_calls(preset))
    block_size = call.source.layout.block_size
    usual = st.sampled_from((*preset.chunk_blocks, 1))
    chunk = block_size * draw(preset.sizes(CHUNK_BLOCKS, usual))
    arguments = {
        "attn_chunk_size": chunk,
        "common_attn_metadata": call.arguments["metadata"],
        "block_size": block_size,
    }
    return Call("make_local_attention_virtual_batches", arguments, call.source)
