"""Compute the slots of a batch for one block table, and the parts of it for other loops.

The loops do not slice arrays: a slice updates the reference count of the array's memory, which
takes four times as long as a token.
"""

from typing import Any

import numpy as np
import torch

from fast._checks import INT32, check_num_reqs, check_num_tokens
from fast._native.compiler import (
    Int,
    Int32s,
    Int64s,
    compiled,
    inlined,
    int32s_at,
    int64s_at,
)
from fast._native.memory import (
    as_written_array,
    check_slots_out,
    locate,
    locate_table,
    plain,
)
from fast.sentinels import PAD_SLOT_ID


def fill_slots(
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    layout: tuple[int, int, int, int, int],
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the slots of a batch, and -1 for tokens without a slot.

    Args:
        block_table: int32[at least num_reqs, max_blocks] on the CPU, with any strides.
        query_start_loc: int32[num_reqs + 1] on the CPU.
        positions: int64[num_tokens] on the CPU.
        layout: Block size, kernel block size, context-parallel ranks, rank and interleave.
        out: int64[at least num_tokens] on the CPU; past the tokens it becomes -1. None: a new
            tensor.

    Returns:
        int64[num_tokens]: a view of `out`, or the new tensor.
    """
    table_at, table, row_stride, column_stride = locate_table("block_table", block_table, INT32)
    starts_at, starts = locate("query_start_loc", query_start_loc, INT32)
    positions_at, places = locate("positions", positions, torch.int64)
    num_reqs, num_positions = starts.nelement() - 1, places.nelement()
    num_rows, num_columns = table.shape
    check_num_reqs(num_reqs, num_rows)
    if out is None:
        slots = np.empty(num_positions, dtype=np.int64)
    else:
        check_slots_out(out, {"positions": places})
        # Contiguous entries are written in half of the time.
        whole = out if out.is_contiguous() else plain("out", out).contiguous()
        slots = as_written_array("out", whole, np.int64, 1)
    entries = (table_at, row_stride, column_stride, num_columns)
    batch = (starts_at, num_reqs, positions_at, num_positions)
    if not write_slots(*entries, *batch, slots, *layout):
        check_num_tokens(starts.numpy(), num_positions)
    if out is None:
        return torch.from_numpy(slots)
    return (out if whole is out else out.copy_(whole))[:num_positions]


@inlined
def slot_of(
    blocks: Int32s, start: Int, step: Int, num_blocks: Int, block_size: Int, position: Int
) -> Any:
    """Return the slot of one position, -1 if it has none.

    A row of a block table is every `step`-th entry of `blocks` from `start` on, `num_blocks`
    entries. A batch of decodes needs only this: called for each token, it takes a third of the time
    that the two loops below take for a run of one.
    """
    # Unsigned, a negative position is far outside the table.
    column = np.uint64(position) // np.uint64(block_size)
    if column >= np.uint64(num_blocks):
        return np.int64(PAD_SLOT_ID)
    block_id = np.int64(blocks[np.uint64(start) + column * np.uint64(step)])
    if block_id < 0:
        return np.int64(PAD_SLOT_ID)
    return block_id * block_size + (position - np.int64(column) * block_size)


@inlined
def slot_on_rank(
    blocks: Int32s,
    start: Int,
    step: Int,
    num_blocks: Int,
    block_size: Int,
    kernel_size: Int,
    world: Int,
    rank: Int,
    interleave: Int,
    position: Int,
) -> Any:
    """Return the slot of one position on a rank of several, -1 if it has none there."""
    virtual_size = block_size * world
    inner = position % virtual_size
    if position < 0 or inner // interleave % world != rank:
        return np.int64(PAD_SLOT_ID)
    offset = inner // (world * interleave) * interleave + inner % interleave
    column = position // virtual_size * (block_size // kernel_size) + offset // kernel_size
    if column >= num_blocks:
        return np.int64(PAD_SLOT_ID)
    block_id = np.int64(blocks[np.uint64(start + column * step)])
    if block_id < 0:
        return np.int64(PAD_SLOT_ID)
    return block_id * kernel_size + offset % kernel_size


@inlined
def are_consecutive(positions: Int64s, begin: Int, end: Int) -> Any:
    """Return whether the positions of some tokens are consecutive and at least 0."""
    first = positions[begin]
    differences = np.int64(0)
    for at in range(np.uint64(begin), np.uint64(end)):
        differences |= positions[at] - first - (np.int64(at) - begin)
    # The last is less than the first if they wrap around.
    return first >= 0 and differences == 0 and positions[end - 1] >= first


@inlined
def fill_consecutive(
    blocks: Int32s,
    start: Int,
    step: Int,
    num_blocks: Int,
    block_size: Int,
    first: Int,
    slots: Int64s,
    begin: Int,
    end: Int,
) -> None:
    """Write the slots of consecutive positions from `first` on, as `slot_of` gives them.

    Slots in a block are consecutive: counting takes a fifth of the time of a division for each.
    """
    # Unsigned: a signed division corrects for negative numbers, a signed index is tested for them.
    size = np.uint64(block_size)
    column = np.uint64(first) // size
    in_block = np.uint64(first) - column * size
    at = np.uint64(begin)
    while at < np.uint64(end):
        stop = min(at + size - in_block, np.uint64(end))
        block_id = np.int64(-1)
        if column < np.uint64(num_blocks):
            block_id = np.int64(blocks[np.uint64(start) + column * np.uint64(step)])
        slot = block_id * block_size + np.int64(in_block) - np.int64(at)
        if block_id >= 0:
            for k in range(at, stop):
                slots[k] = slot + np.int64(k)
        else:
            for k in range(at, stop):
                slots[k] = PAD_SLOT_ID
        at = stop
        column += np.uint64(1)
        in_block = np.uint64(0)


@compiled(
    "boolean(int64, int64, int64, int64, int64, int64, int64, int64, int64[::1], int64, int64,"
    " int64, int64, int64)"
)
def write_slots(
    table_address: int,
    row_stride: int,
    column_stride: int,
    num_columns: int,
    starts_address: int,
    num_reqs: int,
    positions_address: int,
    num_positions: int,
    slots: Int64s,
    block_size: int,
    kernel_size: int,
    world: int,
    rank: int,
    interleave: int,
) -> bool:
    """Write the slots of a batch, and -1 for tokens without one, to the end of `slots`.

    Reads an int32 table of at least `num_reqs` rows, through its strides; int32[num_reqs + 1], the
    starts; and int64[num_positions]. Returns whether there are as many positions as tokens;
    otherwise nothing is written.
    """
    starts = int32s_at(starts_address, num_reqs + 1)
    positions = int64s_at(positions_address, num_positions)
    if starts[num_reqs] > num_positions:
        return False
    last_block = (num_reqs - 1) * row_stride + (num_columns - 1) * column_stride
    blocks = int32s_at(table_address, last_block + 1 if num_reqs * num_columns else 0)
    token = np.int64(0)
    for request in range(num_reqs):
        end = min(np.int64(starts[request + 1]), np.int64(num_positions))
        if token >= end:
            continue
        start = request * row_stride
        row = (start, column_stride, num_columns, kernel_size)
        if world == 1 and end == token + 1:
            slots[token] = slot_of(blocks, *row, positions[token])
            token = end
            continue
        if world == 1 and are_consecutive(positions, token, end):
            fill_consecutive(blocks, *row, positions[token], slots, token, end)
            token = end
            continue
        for at in range(token, end):
            place = (kernel_size, world, rank, interleave, positions[at])
            slots[at] = slot_on_rank(blocks, start, column_stride, num_columns, block_size, *place)
        token = end
    for at in range(np.uint64(token), np.uint64(len(slots))):
        slots[at] = PAD_SLOT_ID
    return True
