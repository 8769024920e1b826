"""Calls of `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from conformance.arrays.guard_bands import guarded, poisoned, poisoned_out
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout
from conformance.strategies.batches import batches
from conformance.strategies.block_size import divisors
from conformance.strategies.large_batches import (
    BLOCK_IDS,
    BLOCK_SIZE,
    INTERLEAVE,
    KERNEL_BLOCKS,
    RANKS,
    ROOM,
)
from conformance.strategies.repeated import long_lists
from conformance.values.call import Arguments, Call

INDEX_DTYPES = (np.int32, np.int64, np.int16, np.int8, np.uint8)
"""The dtypes that `map_to_kernel_blocks` keeps."""

NUM_IDS = "number of ids"
DIMENSIONS = "dimensions"


@st.composite
def layouts(draw: st.DrawFn, preset: Preset) -> Layout:
    """Draw block layouts, with kernel blocks and context-parallel ranks."""
    if preset.axis:
        return draw(_large_layouts(preset))
    sizes = (*preset.block_sizes, 4) if preset.name == "minimal" else preset.block_sizes
    block_size = draw(st.sampled_from(sizes))
    kernel_block_size = draw(st.sampled_from((None, *divisors(block_size)[::-1])))
    world = draw(st.sampled_from((1, 2, 3, 4)))
    rank = draw(st.integers(0, world - 1))
    interleave = draw(st.sampled_from(divisors(block_size)))
    return Layout(block_size, kernel_block_size, world, rank, interleave)


@st.composite
def _large_layouts(draw: st.DrawFn, preset: Preset) -> Layout:
    """Draw layouts of a preset that is large along an axis, with few kernel blocks otherwise."""
    block_size = draw(preset.sizes(BLOCK_SIZE, st.sampled_from(preset.block_sizes)))
    pieces = draw(preset.sizes(KERNEL_BLOCKS, st.just(1)))
    interleave = draw(preset.sizes(INTERLEAVE, st.just(1)))
    world = draw(preset.sizes(RANKS, st.sampled_from((1, 2, 3))))
    rank = draw(st.integers(0, min(world, 4) - 1))
    block_size *= pieces * interleave
    return Layout(block_size, block_size // pieces, world, rank, interleave)


@st.composite
def compute_slot_mapping_calls(
    draw: st.DrawFn,
    preset: Preset,
    *,
    is_scattered: bool | None = None,
    is_shared: bool | None = None,
) -> Call:
    """Draw calls of `compute_slot_mapping`; the source is the `Batch`."""
    batch = draw(batches(preset, layout=draw(layouts(preset)), is_shared=is_shared))
    positions = batch.positions()
    if draw(st.booleans()) if is_scattered is None else is_scattered:
        # Any position of the sequence may be requested, in any order.
        for seq_len, (start, stop) in zip(batch.seq_lens, pairwise(batch.starts), strict=True):
            positions[start:stop] = seq_len - 1 - positions[start:stop]
    arguments: Arguments = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": positions,
        "block_size": batch.layout.block_size,
    }
    defaults = Layout(batch.layout.block_size)
    for name, value in batch.layout.keywords().items():
        if value != getattr(defaults, name) or draw(st.booleans()):
            arguments[name] = value
    room = draw(preset.sizes(ROOM, st.sampled_from((None, 0, 3))))
    if room is not None:
        arguments["out"] = poisoned_out(
            len(positions) + room, np.int64, draw(st.sampled_from((1, 2, 0)))
        )
    return Call("compute_slot_mapping", arguments, batch)


@st.composite
def map_to_kernel_blocks_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `map_to_kernel_blocks`: ids up to the last that the dtype can hold."""
    dtype: Any = draw(st.sampled_from((np.int64,) if preset.axis else INDEX_DTYPES))
    few = st.sampled_from((1, 2, 3, 4, 16))
    # Kernel blocks of block 0 that take all ids of int8; and one more.
    count = draw(st.sampled_from((128, 129)) if dtype is np.int8 and draw(st.RARELY) else few)
    count = draw(preset.sizes(KERNEL_BLOCKS, st.just(count)))
    shape = tuple(
        draw(st.lists(st.integers(0, 3 if preset.name == "minimal" else 9), min_size=1, max_size=3))
    )
    if preset.axis:
        shape = (1,) * (draw(preset.sizes(DIMENSIONS, st.just(1))) - 1)
        shape += (draw(preset.sizes(NUM_IDS, st.just(3))),)
    last = (int(np.iinfo(dtype).max) + 1) // count - 1
    if last < 0:
        last, shape = 0, (*shape[:-1], 0)  # not even block 0 fits, so there are no ids
    ids = draw(
        st.lists(st.one_of(st.integers(0, min(9, last)), st.just(last)), min_size=1, max_size=6)
    )
    if preset.axis:
        largest = draw(preset.sizes(BLOCK_IDS, st.just(9)))
        ids = [largest, *draw(long_lists(st.integers(0, largest), shape[-1]))]
    size = int(np.prod(shape))
    values = np.resize(np.array(ids, dtype), size).reshape(shape)
    if len(shape) == 1:
        block_ids = guarded(values.tolist(), dtype, draw(st.sampled_from((1, 2))))
    else:
        memory = poisoned((*shape[:-1], shape[-1] + 1), dtype)
        memory[..., :-1] = values
        block_ids = memory[..., :-1]
    return Call("map_to_kernel_blocks", {"block_ids": block_ids, "blocks_per_kv_block": count})


def rank_of(batch: Batch, position: int) -> int:
    """Return the context-parallel rank of a position."""
    layout = batch.layout
    virtual = position % (layout.block_size * layout.cp_world_size)
    return virtual // layout.cp_kv_cache_interleave_size % layout.cp_world_size
