"""Interpretations of slots: the slots that tokens write, and their kernel blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change, InManagersBlocks
from conformance.laws.interpretation import Interpretation, Reader, changing, with_batch
from conformance.strategies import cached as st
from conformance.strategies.arrays import poisoned_out
from conformance.strategies.batches import batches
from conformance.strategies.presets import Preset
from conformance.strategies.slots import (
    compute_slot_mapping_calls,
    layouts,
)


def _with_change(call: Call, change: Change) -> Call:
    """Return the call about a changed batch, with an `out` that is as much longer."""
    batch = change(call.facts)
    arguments: dict[str, Any] = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        **batch.layout.keywords(),
    }
    if "out" in call:
        room = len(call["out"]) - call.facts.num_actual_tokens
        arguments["out"] = poisoned_out(batch.num_actual_tokens + room, np.int64)
    return with_batch(call, batch, **arguments)


def _slots_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    metadata = call.facts.metadata()
    slots = np.array(reader.answer(call).tolist(), np.int64)
    yield reader.access(dataclasses.replace(metadata, slot_mapping=slots), call.facts.layout)


def calls_in_place(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls in which each token has its own position."""
    return compute_slot_mapping_calls(preset, is_scattered=False)


@st.composite
def _mapped_batches(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls that map the table of a batch from the manager's blocks to kernel blocks."""
    layout = dataclasses.replace(draw(layouts(preset)), cp_world_size=1, cp_rank=0)
    call = Call("map_to_kernel_blocks", {}, draw(batches(preset, layout=layout)))
    return _mapping(call, Change())


_mapping = changing(
    block_ids=lambda batch: dataclasses.replace(InManagersBlocks()(batch), filler=0).block_table(),
    blocks_per_kv_block=lambda batch: batch.layout.blocks_per_kv_block,
)
"""Changes the batch of a call: the table lists the manager's blocks, and its filler is null."""


def _mapped_batch(reader: Reader, call: Call) -> Iterator[Access]:
    table = reader.answer(call).cpu().numpy()
    metadata = dataclasses.replace(call.facts.metadata(), block_table_tensor=table)
    yield reader.access(metadata, call.facts.layout)


SLOTS = Interpretation(_slots_of_batch, _with_change, shows=Half.WRITES, calls=calls_in_place)
"""Of `compute_slot_mapping`: what the batch writes through the slots."""

MAPPED_TABLE = Interpretation(_mapped_batch, _mapping, shows=Half.READS, calls=_mapped_batches)
"""Of `map_to_kernel_blocks`: what the batch reads through the table."""
