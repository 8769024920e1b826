"""Kernels for block tables and slots.

All KV cache groups lie in one array, group after group; a group's tables are rows of one width.
`groups[g]` is `(offset of its first row, width, block size)`.

Indices that come from the caller's data are compared with the bounds before they are used: numba
wraps a negative index, and nothing stops one that is too great.
"""

import numpy as np

from fast._compiled import Int32s, Int64s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.sentinels import NULL_BLOCK_ID, PAD_SLOT_ID


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64[::1], int64)")
def append_block_ids(
    tables: Int32s, num_blocks: Int32s, groups: Int64s, plan: Int64s, num_listed: int
) -> None:
    """Append block ids to rows: one block of threads for each listed request slot (x), group (y).

    Its threads share the new ids: each copies every `blockDim.x`-th of them from `plan` to the
    row in `tables`; thread 0 then counts them in `num_blocks`. `plan` is the request slots, the
    ends of each one's ids in `plan` for each group (from the start of the first), the ids, and
    whether each row is overwritten.

    Reads plan, groups, num_blocks; writes the rows' new entries and num_blocks of the rows.
    A request slot is listed once, so no other block touches its row.
    """
    listed = np.int64(cuda.blockIdx.x)
    group = np.int64(cuda.blockIdx.y)
    row = plan[listed]
    if row < 0 or row >= num_blocks.shape[1]:
        return
    ends = num_listed + group * (num_listed + 1) + listed
    first = plan[ends]
    count = plan[ends + 1] - first
    width = groups[group, 1]
    used = np.int64(0)
    if plan[plan.shape[0] - num_listed + listed] == 0:
        used = np.int64(num_blocks[group, row])
    count = max(np.int64(0), min(count, width - used))
    start = groups[group, 0] + row * width + used
    cuda.syncthreads()  # everyone has read num_blocks
    for k in range(np.int64(cuda.threadIdx.x), count, np.int64(cuda.blockDim.x)):
        tables[start + k] = plan[first + k]
    if cuda.threadIdx.x == 0:
        num_blocks[group, row] = used + count


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def move_row(tables: Int32s, num_blocks: Int32s, groups: Int64s, src: int, dst: int) -> None:
    """Move a request slot's row to another: one block of threads for each group (x).

    Each thread copies every `blockDim.x`-th block id of the row; thread 0 then hands over the
    count. Reads groups, row src; writes row dst, num_blocks of both. src and dst differ.
    """
    group = np.int64(cuda.blockIdx.x)
    offset = groups[group, 0]
    width = groups[group, 1]
    count = np.int64(num_blocks[group, src])
    cuda.syncthreads()  # everyone has read num_blocks
    for k in range(np.int64(cuda.threadIdx.x), count, np.int64(cuda.blockDim.x)):
        tables[offset + dst * width + k] = tables[offset + src * width + k]
    if cuda.threadIdx.x == 0:
        num_blocks[group, dst] = count
        num_blocks[group, src] = 0


@kernel("void(int32[::1], int32[:, ::1], int64[:, ::1], int64, int64)")
def swap_rows(tables: Int32s, num_blocks: Int32s, groups: Int64s, a: int, b: int) -> None:
    """Swap two request slots' rows: one block of threads for each group (x).

    Each thread swaps every `blockDim.x`-th pair of entries, as many as the longer row has; thread 0
    then swaps the counts. Reads groups; reads and writes rows a and b, num_blocks of both. a and b
    differ.
    """
    group = np.int64(cuda.blockIdx.x)
    row_a = groups[group, 0] + a * groups[group, 1]
    row_b = groups[group, 0] + b * groups[group, 1]
    count_a = np.int64(num_blocks[group, a])
    count_b = np.int64(num_blocks[group, b])
    cuda.syncthreads()  # everyone has read num_blocks
    longer = max(count_a, count_b)
    for k in range(np.int64(cuda.threadIdx.x), longer, np.int64(cuda.blockDim.x)):
        block_id = tables[row_a + k]
        tables[row_a + k] = tables[row_b + k]
        tables[row_b + k] = block_id
    if cuda.threadIdx.x == 0:
        num_blocks[group, a] = count_b
        num_blocks[group, b] = count_a


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

    All rows of the persistent buffer have one, those past `num_reqs` too. Each thread writes every
    `blockDim.x`-th entry of its row in `gathered`: the request slot's block ids, then nulls up to
    what the step before left there, which thread 0 finds in `num_gathered` and replaces.

    Reads tables, num_blocks, groups, idx_mapping (every `idx_stride`-th); writes its own row of
    gathered and num_gathered, which no other block touches.
    """
    row = np.int64(cuda.blockIdx.x)
    group = np.int64(cuda.blockIdx.y)
    offset = groups[group, 0]
    width = groups[group, 1]
    source = np.int64(-1)
    if row < num_reqs:
        source = np.int64(idx_mapping[row * idx_stride])
    count = np.int64(0)
    if source >= 0 and source < num_blocks.shape[1]:
        count = np.int64(num_blocks[group, source])
    left = np.int64(num_gathered[group, row])
    cuda.syncthreads()  # everyone has read num_gathered
    for k in range(np.int64(cuda.threadIdx.x), max(count, left), np.int64(cuda.blockDim.x)):
        block_id = np.int32(NULL_BLOCK_ID)
        if k < count:
            block_id = tables[offset + source * width + k]
        gathered[offset + row * width + k] = block_id
    if cuda.threadIdx.x == 0:
        num_gathered[group, row] = count


@device_function
def find_request(query_start_loc: Int32s, stride: int, num_reqs: int, token: int) -> np.int64:
    """Return the last request that starts at or before a token; `num_reqs` is at least 1."""
    low = np.int64(0)
    high = np.int64(num_reqs)
    while high - low > 1:
        middle = (low + high) // 2
        if query_start_loc[middle * stride] <= token:
            low = middle
        else:
            high = middle
    return low


@device_function
def find_column(
    position: int, block_size: int, kernel_block_size: int, world: int, rank: int, interleave: int
) -> tuple[np.int64, np.int64]:
    """Return the column of a position in its row and its offset in that block.

    Of what another rank holds, and of a negative position, the column is negative.
    """
    in_virtual_block = position % (block_size * world)
    if (in_virtual_block // interleave) % world != rank:
        return np.int64(-1), np.int64(0)
    column = position // (block_size * world)
    offset = in_virtual_block // (world * interleave) * interleave + in_virtual_block % interleave
    column = column * (block_size // kernel_block_size) + offset // kernel_block_size
    return np.int64(column), np.int64(offset % kernel_block_size)


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
    """Compute the slots of a batch: one thread for every `gridsize`-th entry of `slots`.

    Reads table, query_start_loc, positions; writes its own entries of slots: -1 for padding, for
    what another rank holds, and for what is not in the table. The arrays are flat, and are stepped
    through by the strides.
    """
    num_tokens = np.int64(0)
    if num_reqs > 0:
        num_tokens = np.int64(min(query_start_loc[num_reqs * starts_stride], num_positions))
    for token in range(cuda.grid(1), num_slots, cuda.gridsize(1)):
        slot = np.int64(PAD_SLOT_ID)
        if token < num_tokens:
            request = find_request(query_start_loc, starts_stride, num_reqs, token)
            column, offset = find_column(
                positions[token * positions_stride],
                block_size,
                kernel_block_size,
                world,
                rank,
                interleave,
            )
            if column >= 0 and column < num_columns:
                block_id = np.int64(table[request * row_stride + column * column_stride])
                if block_id >= 0:
                    slot = block_id * kernel_block_size + offset
        slots[token * slots_stride] = slot


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
    the group's row: -1 for padding, and for what is not in the table.
    """
    group = np.int64(cuda.blockIdx.y)
    offset = groups[group, 0]
    width = groups[group, 1]
    block_size = groups[group, 2]
    num_tokens = np.int64(0)
    if num_reqs > 0:
        num_tokens = np.int64(min(query_start_loc[num_reqs * starts_stride], num_positions))
    for token in range(cuda.grid(1), slots.shape[1], cuda.gridsize(1)):
        slot = np.int64(PAD_SLOT_ID)
        if token < num_tokens:
            request = find_request(query_start_loc, starts_stride, num_reqs, token)
            position = positions[token * positions_stride]
            column = position // block_size
            if position >= 0 and column < width:
                block_id = np.int64(tables[offset + request * width + column])
                if block_id >= 0:
                    slot = block_id * block_size + position % block_size
        slots[group, token] = slot
