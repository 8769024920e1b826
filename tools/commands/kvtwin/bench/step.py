"""A whole step of a runner, in which the hot functions are timed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from conformance.targets.target import Target
from kvtwin.bench.batches import BLOCK_SIZE, Batch
from kvtwin.bench.calls import array_of, prepare
from kvtwin.bench.inputs import (
    append_arguments,
    build_arguments,
    make_metadata,
    make_tables,
    reorder_call,
)
from kvtwin.bench.jobs import BIG_CHUNK

TORCH_ADD: Final = "torch.add"
"""The yardstick of a step: adding two tensors of 256 float32."""


def make_step(batch: Batch, target: Target) -> Callable[[], Any]:
    """Return a call that runs a step, from reordering to metadata and virtual batches.

    It is a steady step: swaps do nothing, and requests and order are those of the step before, so
    that gathering copies only appended blocks.

    Args:
        batch: The batch of the step.
        target: The implementation.

    Returns:
        The call, which returns the metadata of all layers, and the virtual batch.
    """
    tables = make_tables(batch, target)
    _, reorder = reorder_call(batch, target, does_swap=False)
    append = prepare(target, "BlockTables.append_block_ids", tables, *append_arguments(batch))
    everyone = array_of(target, np.arange(batch.num_reqs, dtype=np.int32))
    gather = prepare(target, "BlockTables.gather_block_tables", tables, everyone)
    starts, positions = array_of(target, batch.starts), array_of(target, batch.positions)
    find_slots = prepare(target, "BlockTables.compute_slot_mappings", tables, starts, positions)
    # The buffers' views are the same in every step, so they are passed once.
    arguments = build_arguments(batch, target)
    arguments.update(block_tables=gather(), slot_mappings=find_slots())
    build = prepare(target, "build_attn_metadata", **arguments)
    make_local = prepare(
        target,
        "make_local_attention_virtual_batches",
        BIG_CHUNK,
        make_metadata(batch, target),
        BLOCK_SIZE,
    )

    def step() -> Any:
        reorder()
        append()
        gather()
        find_slots()
        return build(), make_local()

    return step
