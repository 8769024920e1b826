"""Bad calls of `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import (
    array_faults,
    changed,
    int_faults,
    query_start_loc_faults,
)
from conformance.strategies.batches import Batch
from conformance.strategies.slots import rank_of


def _held_token(batch: Batch, positions: np.ndarray[Any, Any]) -> int | None:
    """Return the first token whose position this rank holds."""
    for t in range(batch.num_tokens):
        if rank_of(batch, int(positions[t])) == batch.layout.cp_rank:
            return t
    return None


def _negative_position(call: Call) -> Call | None:
    if not call.facts.num_tokens:
        return None
    positions = call.arguments["positions"].copy()
    positions[call.facts.num_tokens - 1] = -1
    return call.replacing(positions=positions)


def _column_outside(call: Call) -> Call | None:
    positions = call.arguments["positions"].copy()
    token = _held_token(call.facts, positions)
    if token is None:
        return None
    layout = call.facts.layout
    width = call.arguments["block_table"].shape[1]
    # Whole rounds of the ranks further on, so that it is still this rank's.
    positions[token] += layout.block_size * layout.cp_world_size * (width + 1)
    return call.replacing(positions=positions)


def _negative_block(call: Call) -> Call | None:
    token = _held_token(call.facts, call.arguments["positions"])
    if token is None:
        return None
    table = call.arguments["block_table"].copy()
    request = int(np.searchsorted(call.facts.starts, token, side="right")) - 1
    table[request] = -1
    return call.replacing(block_table=table)


def _too_few_rows(call: Call) -> Call | None:
    num_reqs = call.facts.num_reqs
    return (
        call.replacing(block_table=call.arguments["block_table"][: num_reqs - 1])
        if num_reqs
        else None
    )


def _too_few_positions(call: Call) -> Call | None:
    tokens = call.facts.num_tokens
    return call.replacing(positions=call.arguments["positions"][: tokens - 1]) if tokens else None


def _out(dtype: type[np.generic], missing: int) -> Change:
    def breaks(call: Call) -> Call | None:
        length = len(call.arguments["positions"]) - missing
        return call.replacing(out=np.zeros(length, dtype)) if length >= 0 else None

    return breaks


def _out_is_one_element(call: Call) -> Call | None:
    length = len(call.arguments["positions"])
    out = np.ndarray((length,), np.int64, np.zeros(1, np.int64), strides=(0,))
    return call.replacing(out=out) if length > 1 else None


def _out_is_positions(call: Call) -> Call | None:
    positions = call.arguments["positions"]
    return call.replacing(out=positions) if len(positions) else None


SLOT_MAPPING_INVALID_INPUTS = [
    *array_faults("block_table", np.int64),
    *array_faults("positions", np.int32),
    *query_start_loc_faults(),
    *int_faults("block_size"),
    *int_faults("cp_world_size"),
    *int_faults("cp_rank", least=0),
    *int_faults("cp_kv_cache_interleave_size"),
    *int_faults("kernel_block_size"),
    InvalidInput(
        "the interleave does not divide the block size",
        ValueError,
        "cp_kv_cache_interleave_size",
        lambda call: call.replacing(cp_kv_cache_interleave_size=call.arguments["block_size"] + 1),
    ),
    InvalidInput(
        "the kernel block size does not divide the block size",
        ValueError,
        "kernel_block_size",
        lambda call: call.replacing(kernel_block_size=call.arguments["block_size"] + 1),
    ),
    InvalidInput(
        "the rank is outside the world",
        ValueError,
        "cp_rank",
        lambda call: call.replacing(cp_rank=call.arguments.get("cp_world_size", 1)),
    ),
    InvalidInput(
        "a virtual block has 2**31 positions",
        ValueError,
        "cp_world_size",
        lambda call: call.replacing(
            block_size=2**16,
            kernel_block_size=None,
            cp_world_size=2**15,
            cp_rank=0,
            cp_kv_cache_interleave_size=1,
        ),
    ),
    InvalidInput("there are fewer rows than requests", ValueError, "block_table", _too_few_rows),
    InvalidInput(
        "there is a token, but no request",
        ValueError,
        "query_start_loc",
        lambda call: call.replacing(
            block_table=np.zeros((0, 1), np.int32),
            query_start_loc=np.ones(1, np.int32),
            positions=np.zeros(1, np.int64),
            out=None,
        ),
        is_value=True,
    ),
    InvalidInput(
        "there are fewer positions than tokens",
        ValueError,
        "positions",
        _too_few_positions,
        is_value=True,
    ),
    InvalidInput(
        "a position is negative", ValueError, "positions", _negative_position, is_value=True
    ),
    InvalidInput(
        "a position's column is outside the table",
        ValueError,
        "positions",
        _column_outside,
        is_value=True,
    ),
    InvalidInput(
        "a block id is negative", ValueError, "block_table", _negative_block, is_value=True
    ),
    InvalidInput("out has another dtype", TypeError, "out", _out(np.int32, 0)),
    InvalidInput("out is too short", ValueError, "out", _out(np.int64, 1)),
    InvalidInput("out is one element repeated", ValueError, "out", _out_is_one_element),
    InvalidInput("out is an input", ValueError, "out", _out_is_positions, is_value=True),
]


def _negative_id(call: Call) -> Call | None:
    ids = call.arguments["block_ids"]
    if not ids.size or ids.dtype == np.uint8:
        return None
    bad = ids.copy()
    bad.flat[-1] = -1
    return call.replacing(block_ids=bad)


def _unholdable(call: Call) -> Call | None:
    ids = call.arguments["block_ids"]
    count = call.arguments["blocks_per_kv_block"]
    if not ids.size or count == 1:
        return None
    bad = ids.copy()
    bad.flat[0] = (int(np.iinfo(ids.dtype).max) + 1) // count
    return call.replacing(block_ids=bad)


KERNEL_BLOCKS_INVALID_INPUTS = [
    InvalidInput(
        "block_ids is a list", TypeError, "block_ids", changed("block_ids", np.ndarray.tolist)
    ),
    InvalidInput("block_ids are floats", TypeError, "block_ids", changed("block_ids", np.float32)),
    InvalidInput(
        "block_ids are bools", TypeError, "block_ids", changed("block_ids", lambda a: a > 0)
    ),
    InvalidInput(
        "block_ids has no axis", ValueError, "block_ids", replaced("block_ids", np.array(3))
    ),
    *int_faults("blocks_per_kv_block"),
    InvalidInput("a block id is negative", ValueError, "block_ids", _negative_id, is_value=True),
    InvalidInput(
        "the dtype cannot hold the kernel blocks of any block",
        ValueError,
        "blocks_per_kv_block",
        lambda call: call.replacing(block_ids=np.zeros((2, 1), np.uint8), blocks_per_kv_block=257),
    ),
    InvalidInput(
        "the dtype cannot hold a kernel block",
        ValueError,
        "block_ids",
        _unholdable,
        is_value=True,
    ),
]
