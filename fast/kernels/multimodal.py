"""Kernels for placeholders: a scan over the mask, then moves of rows as bytes.

The scan takes two launches, so that no block waits for another: `count_embeds` counts the True
entries of each tile of the mask, `rank_embeds` adds up the tiles before its own. In both, a tile is
`PER_THREAD` entries for each thread of a block. Then a kernel for rows reads the ranks.
"""

from typing import Final

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, device_function, kernel
from fast.kernels.moves import Bytes, copy_bytes, fill_bytes
from fast.kernels.unsigned import divide, divide_up

PER_THREAD: Final = 8
"""Entries of the mask for each thread of a block; those of all its threads are a tile."""

MAX_THREADS: Final = 1024
"""The most threads that a block can have."""

NO_RANK: Final = -1
"""The rank of a placeholder that no embedding replaces."""


@kernel("void(uint8[::1], int64, int64, int32[::1])")
def count_embeds(mask: Bytes, mask_stride: int, num_placeholders: int, counts: Int32s) -> None:
    """Count the True entries of a mask: one block of threads for each tile.

    In each round a thread reads one entry, and the entries of all threads of its block are counted
    at once. Reads its tile of mask (every `mask_stride`-th entry); writes its tile's entry of
    counts.
    """
    first = np.int64(cuda.blockIdx.x) * cuda.blockDim.x * PER_THREAD
    count = np.int64(0)
    for place in range(PER_THREAD):
        entry = first + place * cuda.blockDim.x + cuda.threadIdx.x
        is_embed = np.int32(0)
        if entry < num_placeholders and mask[np.uint64(entry * mask_stride)] != 0:
            is_embed = np.int32(1)
        count += cuda.syncthreads_count(is_embed)
    if cuda.threadIdx.x == 0:
        counts[cuda.blockIdx.x] = count


@kernel("void(uint8[::1], int64, int64, int32[::1], int32[::1])")
def rank_embeds(
    mask: Bytes, mask_stride: int, num_placeholders: int, counts: Int32s, ranks: Int32s
) -> None:
    """Number the True entries of a mask: one block of threads for each tile.

    Each thread has `PER_THREAD` consecutive entries. The block's threads add up the counts of the
    tiles before, and the True entries of the threads before (a scan in shared memory); then each
    numbers its own.

    Reads its tile of mask, counts of the tiles up to its own; writes its tile of ranks: how many
    True entries are before a True one, `NO_RANK` for the others. Thread 0 of the last tile writes
    the number of all True entries after them.
    """
    before = cuda.shared.array(1, np.int32)
    scan = cuda.shared.array(MAX_THREADS, np.int32)
    tile = np.int64(cuda.blockIdx.x)
    thread = np.uint32(cuda.threadIdx.x)
    first = (tile * cuda.blockDim.x + thread) * PER_THREAD
    end = min(first + PER_THREAD, np.int64(num_placeholders))

    if thread == 0:
        before[0] = 0
    count = np.int64(0)
    for entry in range(first, end):
        if mask[np.uint64(entry * mask_stride)] != 0:
            count += 1
    scan[thread] = count
    earlier = np.int64(0)
    k = thread
    while k < tile:
        earlier += counts[k]
        k = np.uint32(k + cuda.blockDim.x)
    cuda.syncthreads()
    cuda.atomic.add(before, 0, np.int32(earlier))

    distance = np.uint32(1)
    while distance < cuda.blockDim.x:
        left = np.int64(0)
        if thread >= distance:
            left = np.int64(scan[np.uint32(thread - distance)])
        cuda.syncthreads()
        scan[thread] = scan[thread] + left
        cuda.syncthreads()
        distance = np.uint32(2 * distance)
    cuda.syncthreads()  # a block of one thread has met no barrier since it added

    rank = np.int64(before[0]) + scan[thread] - count
    for entry in range(first, end):
        if mask[np.uint64(entry * mask_stride)] != 0:
            ranks[np.uint64(entry)] = rank
            rank += 1
        else:
            ranks[np.uint64(entry)] = NO_RANK
    if tile == cuda.gridDim.x - 1 and thread == 0:
        ranks[num_placeholders] = before[0] + counts[tile]


@device_function
def find_share(num_things: int, share: int, block: int) -> tuple[np.int64, np.int64]:
    """Return the first item of a block and how many it has; the last blocks have fewer or none."""
    first = np.int64(block) * share
    return first, min(np.int64(share), num_things - first)


@kernel("void(uint8[::1], int64, int64, int32[::1], int64, uint8[::1], int64, int64, int64, int64)")
def scatter_rows(
    embeds: Bytes,
    embeds_stride: int,
    num_embeds: int,
    ranks: Int32s,
    num_placeholders: int,
    placeholders: Bytes,
    num_units: int,
    unit_share: int,
    size: int,
    nan: int,
) -> None:
    """Put rows where the mask is True, NaN elsewhere: each block of threads (x) has some rows.

    The blocks along x share the placeholders, those along y the `num_units` units of `size` bytes
    of a row: `unit_share` each, fewer than 2**31. The threads of a block take units in turn, row
    after row. A True entry past `num_embeds` gives a row of NaN too.

    Reads embeds, whose rows begin every `embeds_stride` bytes, ranks; writes its own bytes of
    placeholders, whose rows are contiguous. `nan` is 8 bytes of the dtype's NaNs.
    """
    row_share = divide_up(num_placeholders, cuda.gridDim.x)
    first_row, rows = find_share(num_placeholders, row_share, cuda.blockIdx.x)
    first_column, columns = find_share(num_units, unit_share, cuda.blockIdx.y)
    if rows <= 0 or columns <= 0:
        return
    row_bytes = num_units * size
    # Divided once; from then on rows and columns are stepped through.
    row, column = divide(cuda.threadIdx.x, columns)
    row_step, column_step = divide(cuda.blockDim.x, columns)
    while row < rows:
        rank = np.int64(ranks[np.uint64(first_row + row)])
        byte = (first_column + column) * size
        at = (first_row + row) * row_bytes + byte
        if rank >= 0 and rank < num_embeds:
            copy_bytes(placeholders, at, embeds, rank * embeds_stride + byte, size)
        else:
            fill_bytes(placeholders, at, nan >> 8 * (byte & 7), size)
        row = np.uint32(row + row_step)
        column = np.uint32(column + column_step)
        if column >= columns:
            column = np.uint32(column - columns)
            row = np.uint32(row + 1)


@kernel("void(uint8[::1], int64, int64, int32[::1], int64, uint8[::1], int64, int64, int64)")
def gather_rows(
    placeholders: Bytes,
    placeholders_stride: int,
    num_embeds: int,
    ranks: Int32s,
    num_placeholders: int,
    embeds: Bytes,
    num_units: int,
    unit_share: int,
    size: int,
) -> None:
    """Take the rows where the mask is True: each block of threads (x) has some rows.

    The blocks along x share the placeholders, those along y the `num_units` units of `size` bytes
    of a row: `unit_share` each, fewer than 2**31. The threads of a block take units in turn, row
    after row. True entries past `num_embeds` are dropped; if there are fewer, the rest of `embeds`
    becomes 0: the threads of placeholder `i` write row `i` of it.

    Reads placeholders, whose rows begin every `placeholders_stride` bytes, ranks; writes the rows
    of embeds, which are contiguous, that belong to its own placeholders.
    """
    total = np.int64(ranks[np.uint64(num_placeholders)])
    row_share = divide_up(num_placeholders, cuda.gridDim.x)
    first_row, rows = find_share(num_placeholders, row_share, cuda.blockIdx.x)
    first_column, columns = find_share(num_units, unit_share, cuda.blockIdx.y)
    if rows <= 0 or columns <= 0:
        return
    row_bytes = num_units * size
    # Divided once; from then on rows and columns are stepped through.
    row, column = divide(cuda.threadIdx.x, columns)
    row_step, column_step = divide(cuda.blockDim.x, columns)
    while row < rows:
        placeholder = first_row + row
        rank = np.int64(ranks[np.uint64(placeholder)])
        byte = (first_column + column) * size
        if rank >= 0 and rank < num_embeds:
            start = placeholder * placeholders_stride + byte
            copy_bytes(embeds, rank * row_bytes + byte, placeholders, start, size)
        if placeholder >= total and placeholder < num_embeds:
            fill_bytes(embeds, placeholder * row_bytes + byte, np.int64(0), size)
        row = np.uint32(row + row_step)
        column = np.uint32(column + column_step)
        if column >= columns:
            column = np.uint32(column - columns)
            row = np.uint32(row + 1)
