"""What slots mean: where tokens write, and in which kernel blocks they are found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.calls import Call
from conformance.laws.access import About, Access
from conformance.laws.changes import AsItIs, Change, InManagersBlocks
from conformance.laws.interpretation import Interpretation, Reader, about, changing
from conformance.strategies.arrays import poisoned_out
from conformance.strategies.batches import batches
from conformance.strategies.draw import Draw
from conformance.strategies.presets import Preset
from conformance.strategies.slots import (
    compute_slot_mapping_calls,
    layouts,
)


def _on(call: Call, change: Change) -> Call:
    """Return the call about a changed batch, with as much room in `out` behind it."""
    batch = change.of(call.facts)
    arguments: dict[str, Any] = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        **batch.layout.keywords(),
    }
    if "out" in call.arguments:
        room = len(call.arguments["out"]) - call.facts.num_actual_tokens
        arguments["out"] = poisoned_out(batch.num_actual_tokens + room, np.int64)
    return about(call, batch, **arguments)


def _slots_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    metadata = call.facts.metadata()
    slots = np.array(reader.answer(call).tolist(), np.int64)
    yield reader.access(dataclasses.replace(metadata, slot_mapping=slots), call.facts.layout)


def calls_in_place(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls of which each token stands at its own position."""
    return compute_slot_mapping_calls(preset, is_scattered=False)


@st.composite
def _mapped_batches(draw: Draw, preset: Preset) -> Call:
    """Draw the table of a batch in the manager's blocks, to be mapped to the kernel's."""
    layout = dataclasses.replace(draw(layouts(preset)), cp_world_size=1, cp_rank=0)
    call = Call("map_to_kernel_blocks", {}, draw(batches(preset, layout=layout)))
    return _mapping(call, AsItIs())


_mapping = changing(
    block_ids=lambda batch: dataclasses.replace(
        InManagersBlocks().of(batch), filler=0
    ).block_table(),
    blocks_per_kv_block=lambda batch: batch.layout.blocks_per_kv_block,
)
"""How the call changes with its batch: the table is in the manager's blocks, a filler of nulls."""


def _mapped_batch(reader: Reader, call: Call) -> Iterator[Access]:
    table = reader.answer(call).cpu().numpy()
    metadata = dataclasses.replace(call.facts.metadata(), block_table_tensor=table)
    yield reader.access(metadata, call.facts.layout)


SLOTS = Interpretation(_slots_of_batch, _on, tells=About.WRITES, calls=calls_in_place)
"""Of `compute_slot_mapping`: what the batch writes through the slots."""

MAPPED_TABLE = Interpretation(_mapped_batch, _mapping, tells=About.READS, calls=_mapped_batches)
"""Of `map_to_kernel_blocks`: what the batch reads through the table."""
