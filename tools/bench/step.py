"""A whole step of a runner: what all hot functions cost together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tools.bench.batches import BLOCK_SIZE, Batch
from tools.bench.inputs import (
    append_arguments,
    build_arguments,
    make_metadata,
    make_tables,
    reorder_call,
)
from tools.bench.jobs import BIG_CHUNK
from tools.bench.sides import Side

YARDSTICK: Final = "torch.add"
"""What a step is held against: adding two tensors of 256 float32."""


def make_step(batch: Batch, side: Side) -> Callable[[], Any]:
    """Return a call that reorders, appends, gathers, finds slots, builds, and makes chunks local.

    It is a steady step: swaps swap nothing, and requests and order are those of the step before, so
    that gathering takes only what was appended.

    Args:
        batch: The step's.
        side: Whose functions.

    Returns:
        It. It returns the metadata of all layers, and the virtual batch.
    """
    tables = make_tables(batch, side)
    _, reorder = reorder_call(batch, side, does_swap=False)
    append = side.call("BlockTables.append_block_ids", tables, *append_arguments(batch))
    everyone = side.array(np.arange(batch.num_reqs, dtype=np.int32))
    gather = side.call("BlockTables.gather_block_tables", tables, everyone)
    starts, positions = side.array(batch.starts), side.array(batch.positions)
    find_slots = side.call("BlockTables.compute_slot_mappings", tables, starts, positions)
    # The buffers' views are the same in every step: they are handed in once.
    arguments = build_arguments(batch, side)
    arguments.update(block_tables=gather(), slot_mappings=find_slots())
    build = side.call("build_attn_metadata", **arguments)
    make_local = side.call(
        "make_local_attention_virtual_batches", BIG_CHUNK, make_metadata(batch, side), BLOCK_SIZE
    )

    def step() -> Any:
        reorder()
        append()
        gather()
        find_slots()
        return build(), make_local()

    return step
