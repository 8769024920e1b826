"""Kernels for block tables and slots.

All KV cache groups are in one array, group after group; a group's tables are rows of one width.
`groups[g]` are the constants of a group; `fast._native.block_table` names the columns.

Indices from the caller's data are compared with the bounds before they are used: numba wraps a
negative index, and does not check one that is too large.

For `BlockTables` the host keeps rows, columns and tokens below 2**31. A caller's own table may have
more columns and more slots, but not more requests. Offsets of rows, and slots, take 64 bits.
"""

import numpy as np

from fast._native.block_table import (
    HAS_SLOTS,
    HEADER,
    INTERLEAVE,
    OFFSET,
    RANK,
    RANKS,
    REACH,
    SIZE,
    WIDTH,
)
from fast._native.compiler import Int32s, Int64s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.kernels.unsigned import divide
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID


@device_function
def apply_changed_row(
    groups: Int64s, tables: Int32s, num_blocks: Int32s, staged: Int32s, changed: int
) -> None:
    """Write a row that staged writes change: one block of threads.

    Its threads share the new entries, and the nulls that follow them where the row had blocks;
    thread 0 then counts the row's blocks. Reads the words of the `changed`-th row in `staged` (see
    `fast._native.block_table.pack`) and groups; writes the row in tables and num_blocks.
    """
    at = np.uint64(HEADER * changed)
    group = np.uint32(staged[at])
    slot = np.uint32(staged[np.uint64(at + np.uint64(1))])
    first = np.uint32(staged[np.uint64(at + np.uint64(2))])
    count = np.uint32(staged[np.uint64(at + np.uint64(3))])
    new = np.uint64(staged[np.uint64(at + np.uint64(4))])
    here = np.uint64(groups[group, OFFSET] + slot * groups[group, WIDTH])
    before = np.uint32(num_blocks[group, slot])
    cuda.syncthreads()  # everyone has read num_blocks
    k = np.uint32(first + np.uint32(cuda.threadIdx.x))
    while k < max(count, before):
        block_id = np.int32(NULL_BLOCK_ID)
        if k < count:
            block_id = staged[new + np.uint64(k - first)]
        tables[here + k] = block_id
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_blocks[group, slot] = count


@kernel("void(int64[:, ::1], int32[::1], int32[:, ::1], int32[::1])")
def apply_staged_writes(groups: Int64s, tables: Int32s, num_blocks: Int32s, staged: Int32s) -> None:
    """Write the rows that staged writes change: one block of threads for each of them (x).

    Reads groups and staged; writes its own row of tables and num_blocks.
    """
    apply_changed_row(groups, tables, num_blocks, staged, np.int64(cuda.blockIdx.x))


@device_function
def gather_row(
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    gathered: Int32s,
    num_gathered: Int32s,
    group: int,
    row: int,
    slot: int,
    num_computed: int,
) -> None:
    """Gather a row of one group: one block of threads.

    Each thread writes every `blockDim.x`-th entry: the blocks of a request slot, none if there is
    no such slot, with nulls before the window of a request with `num_computed` tokens; then nulls
    up to where the previous step wrote, which thread 0 reads from `num_gathered` and replaces.

    Reads tables, num_blocks, groups; writes the row of gathered and num_gathered.
    """
    width = groups[group, WIDTH]
    count, num_freed = np.uint32(0), np.uint32(0)
    there = np.uint64(0)
    if slot >= 0 and slot < num_blocks.shape[1]:
        count = np.uint32(num_blocks[group, np.uint32(slot)])
        there = np.uint64(groups[group, OFFSET] + slot * width)
        reach = groups[group, REACH]
        if reach > 0 and num_computed > reach:
            num_freed, _ = divide(num_computed - reach, groups[group, SIZE])
    here = np.uint64(groups[group, OFFSET] + row * width)
    left = np.uint32(num_gathered[group, row])
    cuda.syncthreads()  # everyone has read num_gathered
    k = np.uint32(cuda.threadIdx.x)
    while k < max(count, left):
        block_id = np.int32(NULL_BLOCK_ID)
        if k < count and k >= num_freed:
            block_id = tables[there + k]
        gathered[here + k] = block_id
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_gathered[group, row] = count


@kernel(
    "void(int64[:, ::1], int32[::1], int32[:, ::1], int32[::1], int32[:, ::1], int32[::1], int64,"
    " int64, int32[::1], int64)"
)
def gather_block_tables(
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    gathered: Int32s,
    num_gathered: Int32s,
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    computed: Int32s,
    computed_step: int,
) -> None:
    """Gather rows in batch order: one block of threads for each row (x) of each group (y).

    All rows of the persistent buffer have a block, those past `num_reqs` too. Reads tables,
    num_blocks, groups, rows, and, unless `computed_step` is 0, computed of the rows' slots; writes
    its own row of gathered and num_gathered, which no other block accesses.
    """
    row = np.uint32(cuda.blockIdx.x)
    slot, num_computed = np.int64(-1), np.int64(0)
    if row < num_reqs:
        slot = np.int64(rows[np.uint64(row * rows_step)])
        if computed_step > 0 and slot >= 0 and slot < num_blocks.shape[1]:
            num_computed = np.int64(computed[np.uint64(slot * computed_step)])
    group = np.uint32(cuda.blockIdx.y)
    of_gathered = (gathered, num_gathered, group, row)
    gather_row(groups, tables, num_blocks, *of_gathered, slot, num_computed)


@device_function
def find_request(query_start_loc: Int32s, stride: int, num_reqs: int, token: int) -> np.uint32:
    """Return the last request that starts at or before a token.

    There is one, and its number is below 2**31.
    """
    low = np.uint32(0)
    high = np.uint32(num_reqs)
    while np.uint32(low + 1) < high:
        middle = np.uint32((low + high) // 2)
        if query_start_loc[np.uint64(middle * stride)] <= token:
            low = middle
        else:
            high = middle
    return low


@device_function
def find_column(
    position: int, block_size: int, kernel_block_size: int, world: int, rank: int, interleave: int
) -> tuple[np.int64, np.uint32]:
    """Return the column of a position in its row, and its offset in that block.

    The column is negative if the position is negative or belongs to another rank. A table may be so
    wide that positions need 64 bits; the offset in a virtual block is below 2**31.
    """
    if position < 0:
        return np.int64(-1), np.uint32(0)
    virtual_size = block_size * world
    virtual_block = np.int64(np.uint64(position) // np.uint64(virtual_size))
    stripe, in_stripe = divide(position - virtual_block * virtual_size, interleave)
    turn, owner = divide(stripe, world)
    if owner != rank:
        return np.int64(-1), np.uint32(0)
    column, in_block = divide(turn * interleave + in_stripe, kernel_block_size)
    columns, _ = divide(block_size, kernel_block_size)
    return virtual_block * columns + column, in_block


@kernel(
    "void(int32[::1], int64, int64, int64, int32[::1], int64, int64, int64[::1], int64, int64,"
    " int64[::1], int64, int64, int64, int64, int64, int64, int64)"
)
def compute_slot_mapping(
    table: Int32s,
    row_stride: int,
    column_stride: int,
    num_columns: int,
    query_start_loc: Int32s,
    starts_stride: int,
    num_reqs: int,
    positions: Int64s,
    positions_stride: int,
    num_positions: int,
    slots: Int64s,
    slots_stride: int,
    num_slots: int,
    block_size: int,
    kernel_block_size: int,
    world: int,
    rank: int,
    interleave: int,
) -> None:
    """Compute the slots of a batch: one thread for each entry of `slots`.

    Reads table, query_start_loc, positions; writes its own entries of slots: -1 for padding, for
    tokens of another rank, and for positions that are not in the table. The arrays are flat, and
    are accessed through their strides.
    """
    num_tokens = np.int64(0)
    if num_reqs > 0:
        end = query_start_loc[np.uint64(num_reqs * starts_stride)]
        num_tokens = np.int64(min(end, num_positions))
    token = np.int64(cuda.grid(1))
    if token >= num_slots:
        return
    slot = np.int64(PAD_SLOT_ID)
    if token < num_tokens:
        request = find_request(query_start_loc, starts_stride, num_reqs, token)
        column, in_block = find_column(
            positions[np.uint64(token * positions_stride)],
            block_size,
            kernel_block_size,
            world,
            rank,
            interleave,
        )
        if column >= 0 and column < num_columns:
            block_id = np.int64(table[np.uint64(request * row_stride + column * column_stride)])
            if block_id >= 0:
                slot = block_id * kernel_block_size + in_block
    slots[np.uint64(token * slots_stride)] = slot


@device_function
def find_slot(
    groups: Int64s, tables: Int32s, num_slots: int, group: int, request_slot: int, position: int
) -> np.int64:
    """Return the slot of a position in a group, -1 if it has none.

    It has none if there is no such request slot, if the group's slots are not computed, if the
    position is in no column of the row, and if another rank holds it.
    """
    if request_slot < 0 or request_slot >= num_slots or groups[group, HAS_SLOTS] == 0:
        return np.int64(PAD_SLOT_ID)
    size, width = groups[group, SIZE], groups[group, WIDTH]
    column, in_block = np.int64(-1), np.uint32(0)
    if groups[group, RANKS] == 1 and position >= 0 and position < 2**31:
        quotient, in_block = divide(position, size)  # of 32 bits
        column = np.int64(quotient)
    else:
        ranks = (groups[group, RANKS], groups[group, RANK], groups[group, INTERLEAVE])
        column, in_block = find_column(position, size, size, *ranks)
    if column < 0 or column >= width:
        return np.int64(PAD_SLOT_ID)
    here = np.uint64(groups[group, OFFSET] + request_slot * width + column)
    slot: np.int64 = tables[here] * size + in_block
    return slot


@kernel(
    "void(int64[:, ::1], int32[::1], int64, int32[::1], int64, int64, int32[::1], int64,"
    " int64[::1], int64, int64, int64[:, ::1])"
)
def compute_slot_mappings(
    groups: Int64s,
    tables: Int32s,
    num_slots: int,
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    starts: Int32s,
    starts_step: int,
    positions: Int64s,
    positions_step: int,
    num_tokens: int,
    slots: Int64s,
) -> None:
    """Compute the slots of all groups: one thread for every `gridsize`-th token (x), group (y).

    Reads tables, groups, rows, starts, and positions of at most `num_tokens` tokens; writes its own
    entries of slots, to the end of the group's row: -1 where there is no slot, and for padding.
    """
    group = np.uint32(cuda.blockIdx.y)
    last = np.int64(0)
    if num_reqs > 0:
        last = min(np.int64(starts[np.uint64(num_reqs * starts_step)]), np.int64(num_tokens))
    token = np.uint32(cuda.grid(1))
    while token < slots.shape[1]:
        slot = np.int64(PAD_SLOT_ID)
        if token < last:
            row = find_request(starts, starts_step, num_reqs, token)
            request_slot = np.int64(rows[np.uint64(row * rows_step)])
            position = positions[np.uint64(token * positions_step)]
            slot = find_slot(groups, tables, num_slots, group, request_slot, position)
        slots[group, token] = slot
        token = np.uint32(token + cuda.gridsize(1))
