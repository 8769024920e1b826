"""Invalid inputs of `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.arrays.guard_bands import Array as NumpyArray
from conformance.invalid_inputs.arrays import Array, Output, Starts
from conformance.invalid_inputs.changes import (
    Refusals,
    changed,
    refusals,
    set_arguments,
    with_element,
)
from conformance.invalid_inputs.kinds import MAX_INT32, Int, invalid_by_kind, size
from conformance.strategies.batch import Batch
from conformance.strategies.slots import rank_of
from conformance.values.call import Call


def _held_token(batch: Batch, positions: np.ndarray[Any, Any]) -> int | None:
    """Return the first token whose position is on this rank."""
    for t in range(batch.num_tokens):
        if rank_of(batch, int(positions[t])) == batch.layout.cp_rank:
            return t
    return None


def _column_outside(call: Call) -> Call | None:
    positions = call.arguments["positions"].copy()
    token = _held_token(call.source, positions)
    if token is None:
        return None
    layout = call.source.layout
    width = call.arguments["block_table"].shape[1]
    # Move by whole rounds of the ranks, so that the position stays on this rank.
    positions[token] += layout.block_size * layout.cp_world_size * (width + 1)
    return call.replacing(positions=positions)


def _negative_block(call: Call) -> Call | None:
    token = _held_token(call.source, call.arguments["positions"])
    if token is None:
        return None
    request = int(np.searchsorted(call.source.starts, token, side="right")) - 1
    return call.replacing(block_table=with_element(call.arguments["block_table"], request, -1))


def _out(call: Call) -> NumpyArray:
    return np.zeros(len(call.arguments["positions"]), np.int64)


def _out_is_positions(call: Call) -> Call | None:
    positions = call.arguments["positions"]
    return call.replacing(out=positions) if len(positions) else None


LARGE_VIRTUAL_BLOCK = set_arguments(
    block_size=2**16,
    kernel_block_size=None,
    cp_world_size=2**15,
    cp_rank=0,
    cp_kv_cache_interleave_size=1,
)

TOKEN_OF_NO_REQUEST = set_arguments(
    block_table=np.zeros((0, 1), np.int32),
    query_start_loc=np.ones(1, np.int32),
    positions=np.zeros(1, np.int64),
    out=None,
)

SLOT_MAPPING_VALUES: Refusals = {
    (ValueError, "query_start_loc"): {"there is a token, but no request": TOKEN_OF_NO_REQUEST},
    (ValueError, "positions"): {"a position's column is outside the table": _column_outside},
    (ValueError, "block_table"): {"a block id is negative": _negative_block},
    (ValueError, "out"): {"out is an input": _out_is_positions},
}

SLOT_MAPPING_INVALID_INPUTS = [
    *invalid_by_kind(
        block_table=Array([np.int64], ndim=2, length=lambda call: call.source.num_reqs),
        positions=Array(
            [np.int32], length=lambda call: call.source.num_tokens, is_length_value=True, minimum=0
        ),
        query_start_loc=Starts(),
        block_size=size(),
        cp_world_size=size(),
        cp_rank=Int(0, MAX_INT32, below="cp_world_size"),
        cp_kv_cache_interleave_size=size(divides="block_size"),
        kernel_block_size=size(divides="block_size", is_optional=True),
        out=Output(_out, np.int32, is_contiguous=False),
    ),
    *refusals(
        {
            (ValueError, "cp_world_size"): {
                "a virtual block has 2**31 positions": LARGE_VIRTUAL_BLOCK
            }
        }
    ),
    *refusals(SLOT_MAPPING_VALUES, is_value=True),
]


def _unholdable(call: Call) -> Call | None:
    ids, count = call.arguments["block_ids"], call.arguments["blocks_per_kv_block"]
    if not ids.size or count == 1:
        return None
    bad = ids.copy()
    bad.flat[0] = (int(np.iinfo(ids.dtype).max) + 1) // count
    return call.replacing(block_ids=bad)


def _negative_id(ids: NumpyArray) -> NumpyArray | None:
    if not ids.size or ids.dtype == np.uint8:
        return None
    bad = ids.copy()
    bad.flat[-1] = -1
    return bad


KERNEL_BLOCKS_VALUES: Refusals = {
    (ValueError, "block_ids"): {
        "a block id is negative": changed("block_ids", _negative_id),
        "the dtype cannot hold a kernel block": _unholdable,
    }
}

KERNEL_BLOCKS_REFUSALS: Refusals = {
    (ValueError, "blocks_per_kv_block"): {
        "the dtype cannot hold the kernel blocks of any block": set_arguments(
            block_ids=np.zeros((2, 1), np.uint8), blocks_per_kv_block=257
        )
    }
}

KERNEL_BLOCKS_INVALID_INPUTS = [
    *invalid_by_kind(
        block_ids=Array([np.float32, np.bool_], ndim=None), blocks_per_kv_block=size()
    ),
    *refusals(KERNEL_BLOCKS_REFUSALS),
    *refusals(KERNEL_BLOCKS_VALUES, is_value=True),
]
