"""The kernel of a whole step, of the parts of `block_table` and `step_inputs`."""

import numpy as np

from fast._native.compiler import Int32s, Int64s
from fast.kernels.block_table import find_slot, gather_row
from fast.kernels.cuda import cuda, kernel
from fast.kernels.step_inputs import (
    fill_following,
    fill_known_tokens,
    fill_positions,
    find_drafted,
)
from fast.sentinels import PAD_SLOT_ID


@kernel(
    "void(int64[:, ::1], int32[::1], int32[:, ::1], int32[::1], int32[:, ::1], int64[:, ::1],"
    " int32[::1], int64, int64, int64, int64, int32[::1], int32[::1], int32[::1], int64[::1],"
    " int64[::1],"
    " int32[:, ::1], int32[::1], int32[::1], int32[::1], int32[::1], int64[::1], int32[::1],"
    " int64[::1])"
)
def prepare_step(  # noqa: C901, PLR0912, PLR0915  (one launch for all)
    groups: Int64s,
    tables: Int32s,
    num_blocks: Int32s,
    gathered: Int32s,
    num_gathered: Int32s,
    slots: Int64s,
    packed: Int32s,
    num_reqs: int,
    num_new_sampled: int,
    width: int,
    max_drafts: int,
    computed: Int32s,
    known: Int32s,
    tokens: Int32s,
    sampled: Int64s,
    drafts: Int64s,
    following: Int32s,
    rows: Int32s,
    starts: Int32s,
    logits: Int32s,
    seq_lens: Int32s,
    positions: Int64s,
    input_ids: Int32s,
    indices: Int64s,
) -> None:
    """Prepare a step: one block of threads for each row (x) of each group (y), and one to pad.

    A block gathers its row and computes the slots of its tokens; that of the first group also
    copies the row's numbers from `packed` (request slots, then where tokens and logits start, all
    padded to the end), and writes its positions, length, tokens and logits. The last block of a
    group pads its slots. `num_reqs` is the number of rows that are not padding,
    and a request has `width` tokens and `max_drafts` draft tokens.

    Reads groups, packed, of the rows' slots computed, known, tokens, sampled and drafts, and their
    rows of tables and num_blocks; writes the rest: entries that no other block accesses.
    """
    row, group = np.uint32(cuda.blockIdx.x), np.uint32(cuda.blockIdx.y)
    thread, num_threads = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x)
    num_rows = np.uint32(rows.shape[0])
    if row == num_rows:
        if group < groups.shape[0]:
            rest = np.uint32(packed[np.uint64(num_rows + num_reqs)] + thread)
            while rest < slots.shape[1]:
                slots[group, rest] = PAD_SLOT_ID
                rest = np.uint32(rest + num_threads)
        return
    slot = np.int64(packed[row])
    start = np.int64(packed[np.uint32(num_rows + row)])
    end = np.int64(packed[np.uint32(num_rows + row + np.uint32(1))])
    before = np.int64(0)
    if slot >= 0:
        before = np.int64(computed[np.uint32(slot)])
    if group < groups.shape[0]:
        of_gathered = (gathered, num_gathered, group, row)
        gather_row(groups, tables, num_blocks, *of_gathered, slot, before)
        token = np.uint32(start + thread)
        while token < np.uint32(end):
            position = before + np.int64(token) - start
            slots[group, token] = find_slot(groups, tables, num_rows, group, slot, position)
            token = np.uint32(token + num_threads)
    if group > 0:
        return
    of_logits = np.uint32(num_rows + num_rows + np.uint32(1) + row)
    first = np.int64(packed[of_logits])
    last = np.int64(packed[np.uint32(of_logits + np.uint32(1))])
    if thread == 0:
        rows[row] = slot
        starts[row] = start
        logits[row] = first
        seq_lens[row] = before + end - start if row < num_reqs else 0
        if row + np.uint32(1) == num_rows:
            starts[num_rows] = end
            logits[num_rows] = last
    fill_positions(start, end, before, positions)
    seq_len, prefill_len = before + end - start, np.int64(0)
    if slot >= 0:
        prefill_len = np.int64(known[np.uint32(slot)])
        if before >= 0 and before < prefill_len:
            here = slot * width
            fill_known_tokens(start, end, before, tokens, here, np.int64(1), width, input_ids)
            limit = min(prefill_len, width)
            after = before + end - start
            fill_following(after, limit, tokens, here, np.int64(1), following, slot)
    cuda.syncthreads()  # drafts may replace known tokens
    logit = np.uint32(first + thread)
    while logit < np.uint32(last):
        index = end - last + np.int64(logit)
        indices[logit] = index
        number = np.int64(logit) - first - num_new_sampled
        draft = np.int64(-2)
        if slot >= 0:
            draft = find_drafted(number, last - first, seq_len, prefill_len, max_drafts)
        if draft == -1:
            input_ids[np.uint32(index)] = sampled[np.uint32(slot)]
        elif draft >= 0:
            input_ids[np.uint32(index)] = drafts[np.uint64(slot * max_drafts + draft)]
        logit = np.uint32(logit + num_threads)
