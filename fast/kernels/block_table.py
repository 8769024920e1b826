"""Kernels for block tables and slots.

All KV cache groups are in one array, group after group; a group's tables are rows of one width.
`groups[g]` is `(offset of its first row, width, block size)`.

Indices from the caller's data are compared with the bounds before they are used: numba wraps a
negative index, and does not check one that is too large.

For `BlockTables` the host keeps rows, columns and tokens below 2**31, positions in a row below
2**32. A caller's own table may have more columns and more slots, but not more requests. Offsets of
rows, and slots, take 64 bits.
"""

import numpy as np

from fast._native.compiler import Int32s, Int64s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.kernels.unsigned import divide
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64[::1], int64)")
def append_block_ids(
    tables: Int32s, num_blocks: Int32s, groups: Int64s, plan: Int64s, num_listed: int
) -> None:
    """Append block IDs to rows: one block of threads for each listed request slot (x), group (y).

    Its threads share the new IDs: each copies every `blockDim.x`-th of them from `plan` to the row
    in `tables`; thread 0 then counts them in `num_blocks`. `plan` is completed (see
    `fast.append_plan`).

    Reads plan, groups, num_blocks; writes the rows' new entries and num_blocks of the rows. A
    request slot is listed once, so no other block writes to its row.
    """
    listed = np.uint32(cuda.blockIdx.x)
    group = np.uint32(cuda.blockIdx.y)
    request_slot = plan[listed]
    if request_slot < 0 or request_slot >= num_blocks.shape[1]:
        return
    row = np.uint32(request_slot)
    ends = np.uint64(num_listed + group * (num_listed + 1) + listed)
    first = plan[ends]
    num_new = plan[np.uint64(ends + 1)] - first
    width = groups[group, 1]
    used = np.int64(0)
    if plan[np.uint64(plan.shape[0] - num_listed + listed)] == 0:
        used = np.int64(num_blocks[group, row])
    count = np.uint32(max(np.int64(0), min(num_new, width - used)))
    start = np.uint64(groups[group, 0] + row * width + used)
    cuda.syncthreads()  # everyone has read num_blocks
    k = np.uint32(cuda.threadIdx.x)
    while k < count:
        tables[start + k] = plan[np.uint64(first + k)]
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_blocks[group, row] = used + count


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def move_row(tables: Int32s, num_blocks: Int32s, groups: Int64s, src: int, dst: int) -> None:
    """Move a request slot's row to another: one block of threads for each group (x).

    Each thread copies every `blockDim.x`-th block ID of the row; thread 0 then moves the count.
    Reads groups, row src; writes row dst, num_blocks of both. src and dst differ.
    """
    group = np.uint32(cuda.blockIdx.x)
    row_src, row_dst = np.uint32(src), np.uint32(dst)
    first_src = np.uint64(groups[group, 0] + src * groups[group, 1])
    first_dst = np.uint64(groups[group, 0] + dst * groups[group, 1])
    count = np.uint32(num_blocks[group, row_src])
    cuda.syncthreads()  # everyone has read num_blocks
    k = np.uint32(cuda.threadIdx.x)
    while k < count:
        tables[first_dst + k] = tables[first_src + k]
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_blocks[group, row_dst] = count
        num_blocks[group, row_src] = 0


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def swap_rows(tables: Int32s, num_blocks: Int32s, groups: Int64s, a: int, b: int) -> None:
    """Swap two request slots' rows: one block of threads for each group (x).

    Each thread swaps every `blockDim.x`-th pair of entries, as many as the longer row has; thread 0
    then swaps the counts. Reads groups; reads and writes rows a and b, num_blocks of both. a and b
    differ.
    """
    group = np.uint32(cuda.blockIdx.x)
    row_a, row_b = np.uint32(a), np.uint32(b)
    first_a = np.uint64(groups[group, 0] + a * groups[group, 1])
    first_b = np.uint64(groups[group, 0] + b * groups[group, 1])
    count_a = np.uint32(num_blocks[group, row_a])
    count_b = np.uint32(num_blocks[group, row_b])
    cuda.syncthreads()  # everyone has read num_blocks
    longer = max(count_a, count_b)
    k = np.uint32(cuda.threadIdx.x)
    while k < longer:
        block_id = tables[first_a + k]
        tables[first_a + k] = tables[first_b + k]
        tables[first_b + k] = block_id
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_blocks[group, row_a] = count_b
        num_blocks[group, row_b] = count_a


@kernel(
    "void(int32[::1], int32[:, ::1], int64[:, ::1], int32[::1], int32[:, ::1], int32[::1], int64,"
    " int64)"
)
def gather_block_tables(
    tables: Int32s,
    num_blocks: Int32s,
    groups: Int64s,
    gathered: Int32s,
    num_gathered: Int32s,
    idx_mapping: Int32s,
    idx_stride: int,
    num_reqs: int,
) -> None:
    """Gather rows in batch order: one block of threads for each row (x) of each group (y).

    All rows of the persistent buffer have a block, those past `num_reqs` too. Each thread writes
    every `blockDim.x`-th entry of its row in `gathered`: the request slot's block IDs, then nulls
    up to where the previous step wrote, which thread 0 reads from `num_gathered` and replaces.

    Reads tables, num_blocks, groups, idx_mapping (every `idx_stride`-th); writes its own row of
    gathered and num_gathered, which no other block accesses.
    """
    row = np.uint32(cuda.blockIdx.x)
    group = np.uint32(cuda.blockIdx.y)
    offset = groups[group, 0]
    width = groups[group, 1]
    source = np.int64(-1)
    if row < num_reqs:
        source = np.int64(idx_mapping[np.uint64(row * idx_stride)])
    count = np.uint32(0)
    there = np.uint64(0)
    if source >= 0 and source < num_blocks.shape[1]:
        count = np.uint32(num_blocks[group, np.uint32(source)])
        there = np.uint64(offset + source * width)
    here = np.uint64(offset + row * width)
    left = np.uint32(num_gathered[group, row])
    cuda.syncthreads()  # everyone has read num_gathered
    k = np.uint32(cuda.threadIdx.x)
    while k < max(count, left):
        block_id = np.int32(NULL_BLOCK_ID)
        if k < count:
            block_id = tables[there + k]
        gathered[here + k] = block_id
        k = np.uint32(k + cuda.blockDim.x)
    if cuda.threadIdx.x == 0:
        num_gathered[group, row] = count


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


@kernel(
    "void(int32[::1], int64[:, ::1], int32[::1], int64, int64, int64[::1], int64, int64,"
    " int64[:, ::1])"
)
def compute_slot_mappings(
    tables: Int32s,
    groups: Int64s,
    query_start_loc: Int32s,
    starts_stride: int,
    num_reqs: int,
    positions: Int64s,
    positions_stride: int,
    num_positions: int,
    slots: Int64s,
) -> None:
    """Compute the slots of all groups: one thread for every `gridsize`-th token (x), group (y).

    Reads tables, groups, query_start_loc, positions; writes its own entries of slots, to the end of
    the group's row: -1 for padding, and for positions that are not in the table.
    """
    group = np.uint32(cuda.blockIdx.y)
    offset = groups[group, 0]
    width = groups[group, 1]
    block_size = groups[group, 2]
    num_tokens = np.int64(0)
    if num_reqs > 0:
        end = query_start_loc[np.uint64(num_reqs * starts_stride)]
        num_tokens = np.int64(min(end, num_positions))
    token = np.uint32(cuda.grid(1))
    while token < slots.shape[1]:
        slot = np.int64(PAD_SLOT_ID)
        if token < num_tokens:
            request = find_request(query_start_loc, starts_stride, num_reqs, token)
            position = positions[np.uint64(token * positions_stride)]
            if position >= 0 and position < width * block_size:
                column, in_block = divide(position, block_size)
                block_id = np.int64(tables[np.uint64(offset + request * width + column)])
                if block_id >= 0:
                    slot = block_id * block_size + in_block
        slots[group, token] = slot
        token = np.uint32(token + cuda.gridsize(1))
