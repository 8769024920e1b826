"""The kernels for block tables and slots with a line changed."""

from __future__ import annotations

from conformance.profiles import Kind
from fast.kernels import block_table
from known_bad.edits import Edit, edits_of

TABLE_EDITS = {
    "append: no barrier before the count is written": Edit(
        "append_block_ids",
        "    cuda.syncthreads()  # everyone has read num_blocks\n",
        "",
        "A late warp reads the new count and writes behind the row; early ones never do.",
    ),
    "append: the first group's ends for all": Edit(
        "append_block_ids",
        "num_listed + group * (num_listed + 1)",
        "num_listed",
        "Right with one group.",
    ),
    "append: the count is every thread's to write": Edit(
        "append_block_ids",
        "    if cuda.threadIdx.x == 0:\n        num_blocks[group, row] = used + count",
        "    num_blocks[group, row] += count // cuda.blockDim.x + 1",
        "An update that is not atomic.",
    ),
    "append: a row as long as the block at most": Edit(
        "append_block_ids",
        "while k < count:",
        "while k < min(count, cuda.blockDim.x):",
        "One element for each thread: right for fewer new blocks than threads.",
    ),
    "move: the count stays": Edit(
        "move_row",
        "\n        num_blocks[group, row_src] = 0",
        "",
        "The next request in that slot is appended to somebody's blocks.",
    ),
    "move: no barrier before the count is written": Edit(
        "move_row",
        "    cuda.syncthreads()  # everyone has read num_blocks\n",
        "",
        "A late warp finds an empty row and copies nothing.",
    ),
    "move: one block too many": Edit(
        "move_row",
        "while k < count:",
        "while k <= count:",
        "`<=` for `<`: it copies what stands past the row, which is seldom read.",
    ),
    "swap: as many as the first row has": Edit(
        "swap_rows",
        "longer = max(count_a, count_b)",
        "longer = count_a",
        "Right when the longer one comes first.",
        Kind.SAME_REFUSAL,
    ),
    "swap: only the first group": Edit(
        "swap_rows",
        "    longer = max(count_a, count_b)",
        "    longer = max(count_a, count_b) * (group == 0)",
        "Right with one group; the counts are right always.",
        Kind.SAME_REFUSAL,
    ),
    "gather: no barrier before the count is written": Edit(
        "gather_block_tables",
        "    cuda.syncthreads()  # everyone has read num_gathered\n",
        "",
        "A late warp clears too little.",
    ),
    "gather: one block too many": Edit(
        "gather_block_tables",
        "if k < count:",
        "if k <= count:",
        "`<=` for `<`: a stale id behind the row, where a longer row was before.",
    ),
    "gather: what was left is left": Edit(
        "gather_block_tables",
        "while k < max(count, left):",
        "while k < count:",
        "Read by padded and speculative positions alone.",
    ),
    "gather: what was gathered is not recorded": Edit(
        "gather_block_tables",
        "num_gathered[group, row] = count",
        "num_gathered[group, row] = left",
        "Nothing is ever cleared; read by padded and speculative positions alone.",
    ),
    "gather: -1 is the last slot": Edit(
        "gather_block_tables",
        "if source >= 0 and source < num_blocks.shape[1]:",
        "if source < num_blocks.shape[1]:",
        "numba wraps a negative index, silently.",
    ),
    "gather: a slot that is not there is looked up": Edit(
        "gather_block_tables",
        "if source >= 0 and source < num_blocks.shape[1]:",
        "if source >= 0:",
        "Only what is checked never asks for one; unchecked, it reads behind the table.",
        "test_bad_entries_are_skipped",
    ),
    "slots: a column past the row is the next row's": Edit(
        "compute_slot_mappings",
        "position < width * block_size:",
        "offset + request * width + position // block_size < tables.size:",
        "It never leaves the table; it leaves the request.",
        "test_bad_entries_are_skipped",
    ),
    "gather: rows past the batch are read from the mapping": Edit(
        "gather_block_tables",
        "if row < num_reqs:",
        "if row <= num_reqs:",
        "One entry past the mapping, which is usually there: the buffer is longer.",
    ),
    "gather: a dense mapping": Edit(
        "gather_block_tables",
        "row * idx_stride",
        "row",
        "Right for every contiguous mapping.",
    ),
    "slots: a request begins one token late": Edit(
        "find_request",
        "(middle * stride)] <= token",
        "(middle * stride)] < token",
        "One token of each request is stored in its neighbour's block.",
    ),
    "slots: the last request is never found": Edit(
        "find_request",
        "high = np.uint32(num_reqs)",
        "high = np.uint32(max(num_reqs - 1, 1))",
        "Right for one request.",
    ),
    "slots: to the end of the block of threads": Edit(
        "compute_slot_mappings",
        "while token < slots.shape[1]:",
        "while token < num_positions:",
        "What is behind the batch stays from a longer step.",
    ),
    "slots: every block of threads does the first one's": Edit(
        "compute_slot_mappings",
        "np.uint32(token + cuda.gridsize(1))",
        "np.uint32(token + cuda.blockDim.x)",
        "The right values, each written many times.",
    ),
    "slots: blocks in ascending order": Edit(
        "compute_slot_mappings",
        "        slots[group, token] = slot",
        "        if group + 1 < groups.shape[0]:\n"
        "            slots[group + 1, token] = np.int64(-1)\n"
        "        slots[group, token] = slot",
        "Each group clears the next one's: right while block (x, 0) runs before block (x, 1).",
    ),
    "slots: positions of another stride": Edit(
        "compute_slot_mappings",
        "token * positions_stride",
        "token",
        "Right for every contiguous vector.",
    ),
    "slots: starts of another stride": Edit(
        "compute_slot_mappings",
        "find_request(query_start_loc, starts_stride,",
        "find_request(query_start_loc, 1,",
        "Right for every contiguous vector.",
    ),
    "slots: one group's tables for all": Edit(
        "compute_slot_mappings",
        "offset = groups[group, 0]",
        "offset = groups[0, 0]",
        "Right with one group.",
    ),
}
"""Bugs of the kernels that a session of `BlockTables` runs."""

SLOT_EDITS = {
    "kernel: one thread past the end": Edit(
        "compute_slot_mapping",
        "if token >= num_slots:",
        "if token > num_slots:",
        "It writes one slot behind the buffer, which is usually padding of the allocator.",
    ),
    "kernel: every block of threads does the first one's": Edit(
        "compute_slot_mapping",
        "token = np.int64(cuda.grid(1))",
        "token = np.int64(cuda.threadIdx.x)",
        "Right for no more slots than a block has threads.",
    ),
    "kernel: one column too many": Edit(
        "compute_slot_mapping",
        "column < num_columns",
        "column <= num_columns",
        "`<=` for `<`: a position behind the table reads the next row.",
        "test_a_misplaced_token_gets_no_slot",
    ),
    "kernel: a dense table": Edit(
        "compute_slot_mapping",
        "request * row_stride + column",
        "request * num_columns + column",
        "Right for every contiguous table.",
    ),
    "kernel: slots in int32": Edit(
        "compute_slot_mapping",
        "slot = block_id * kernel_block_size + in_block",
        "slot = np.int64(np.int32(block_id * kernel_block_size + in_block))",
        "Right until the cache has 2**31 slots.",
    ),
    "kernel: the rank ignores the interleave": Edit(
        "find_column",
        "owner != rank",
        "position % world != rank",
        "Right at the default interleave of 1.",
    ),
    "kernel: the interleave's offset is dropped": Edit(
        "find_column",
        "turn * interleave + in_stripe",
        "turn * interleave",
        "Right at the default interleave of 1.",
    ),
    "kernel: as many tokens as the starts say": Edit(
        "compute_slot_mapping",
        "np.int64(min(end, num_positions))",
        "np.int64(end)",
        "Starts of another batch, unchecked, read behind the positions.",
        Kind.SAME_REFUSAL,
    ),
    "kernel: padding has slots": Edit(
        "compute_slot_mapping",
        "if token < num_tokens:",
        "if token < num_positions:",
        "Padded tokens overwrite a live request's keys, in graph replays only.",
    ),
}
"""Bugs of the kernel of `compute_slot_mapping`."""

KERNELS = [
    *edits_of(block_table, "BlockTables", TABLE_EDITS),
    *edits_of(block_table, "compute_slot_mapping", SLOT_EDITS),
]
