"""Kernels for the inputs of a step: positions, lengths, token IDs, and the tokens with logits.

Vectors and tables that are only read are flat arrays of 32-bit words, accessed through their
strides; of an int64 the lower word is read, which comes first. Indices from the caller's data are
compared with the bounds before they are used. The host keeps rows, slots, logits, and entries of
what is written below 2**31.
"""

from typing import Any

import numpy as np

from fast._native.compiler import Int32s, Int64s
from fast.kernels.block_table import find_request
from fast.kernels.cuda import cuda, device_function, kernel


@device_function
def fill_positions(start: Any, end: Any, before: Any, pos: Int64s) -> None:
    """Write the positions of a row's tokens; each thread of the block, every `blockDim.x`-th."""
    last = np.uint32(max(min(end, np.int64(pos.shape[0])), np.int64(0)))
    token = np.uint32(max(start, np.int64(0)) + cuda.threadIdx.x)
    while token < last:
        pos[token] = before + np.int64(token) - start
        token = np.uint32(token + cuda.blockDim.x)


@device_function
def fill_known_tokens(
    start: Any,
    end: Any,
    before: Any,
    tokens: Int32s,
    here: Any,
    column_stride: Any,
    width: Any,
    input_ids: Int32s,
) -> None:
    """Copy the known tokens of a row after those before it; each thread of the block its part.

    Those of its request are `width` entries of `tokens` from `here` on.
    """
    end = min(end, start + width - before, np.int64(input_ids.shape[0]))
    last = np.uint32(max(end, np.int64(0)))
    token = np.uint32(max(start, np.int64(0)) + cuda.threadIdx.x)
    while token < last:
        column = before + np.int64(token) - start
        input_ids[token] = tokens[np.uint64(here + column * column_stride)]
        token = np.uint32(token + cuda.blockDim.x)


@device_function
def fill_following(
    column: int,
    after: int,
    tokens: Int32s,
    here: int,
    column_stride: int,
    following: Int32s,
    slot: int,
) -> None:
    """Write the tokens of a request from a column on, 0 from `after` on; each thread its part."""
    k = np.uint32(cuda.threadIdx.x)
    while k < following.shape[0]:
        next_token = np.int32(0)
        if column + k >= 0 and column + k < after:
            next_token = tokens[np.uint64(here + (column + k) * column_stride)]
        following[k, np.uint64(slot)] = next_token
        k = np.uint32(k + cuda.blockDim.x)


@device_function
def find_drafted(
    draft: int, num_logits: int, seq_len: int, prefill_len: int, max_drafts: int
) -> np.int64:
    """Return which draft token a logit's token is, -1 for the sampled one, -2 for neither.

    `draft` is the logit's number in its row, less 1 if the first is that of a sampled token.
    """
    if seq_len <= prefill_len or draft >= max_drafts:
        return np.int64(-2)
    if draft < 0 and seq_len - num_logits < prefill_len:
        return np.int64(-2)
    return np.int64(draft)


@kernel(
    "void(int32[::1], int64, int64, int32[::1], int64, int32[::1], int64, int64, int64[::1],"
    " int32[::1])"
)
def prepare_pos_seq_lens(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    starts: Int32s,
    starts_step: int,
    computed: Int32s,
    computed_step: int,
    num_slots: int,
    pos: Int64s,
    seq_lens: Int32s,
) -> None:
    """Write positions and lengths: one block of threads for each row (x), one more for the rest.

    Each thread writes every `blockDim.x`-th position of its row, thread 0 its length. The last
    block writes 0 to the lengths past `num_reqs`. Reads rows, starts, and computed of the rows'
    slots; writes pos of the rows' tokens, and seq_lens.
    """
    row = np.uint32(cuda.blockIdx.x)
    thread = np.uint32(cuda.threadIdx.x)
    if row == num_reqs:
        rest = np.uint32(num_reqs + thread)
        while rest < seq_lens.shape[0]:
            seq_lens[rest] = 0
            rest = np.uint32(rest + cuda.blockDim.x)
        return
    start = np.int64(starts[np.uint64(row * starts_step)])
    end = np.int64(starts[np.uint64((row + np.int64(1)) * starts_step)])
    slot = np.int64(rows[np.uint64(row * rows_step)])
    before = np.int64(0)
    if slot >= 0 and slot < num_slots:
        before = np.int64(computed[np.uint64(slot * computed_step)])
    if thread == 0:
        seq_lens[row] = before + end - start
    fill_positions(start, end, before, pos)


@kernel(
    "void(int32[::1], int64, int64, int32[::1], int64, int32[::1], int64, int64, int64, int32[::1],"
    " int64, int32[::1], int64, int32[::1], int32[:, ::1])"
)
def prepare_prefill_inputs(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    starts: Int32s,
    starts_step: int,
    tokens: Int32s,
    row_stride: int,
    column_stride: int,
    width: int,
    known: Int32s,
    known_step: int,
    computed: Int32s,
    computed_step: int,
    input_ids: Int32s,
    following: Int32s,
) -> None:
    """Write the tokens of prefilling rows: one block of threads for each of `num_reqs` rows (x).

    Each thread copies every `blockDim.x`-th new token of its row, and of the tokens that follow.
    Reads rows, starts, and of the rows' slots tokens (`width` each), known and computed; writes
    input_ids of the rows' tokens, and the slots' columns of following.
    """
    row = np.uint32(cuda.blockIdx.x)
    slot = np.int64(rows[np.uint64(row * rows_step)])
    if row >= num_reqs or slot < 0 or slot >= following.shape[1]:
        return
    before = np.int64(computed[np.uint64(slot * computed_step)])
    after = np.int64(known[np.uint64(slot * known_step)])
    if before < 0 or before >= after:
        return
    start = np.int64(starts[np.uint64(row * starts_step)])
    end = np.int64(starts[np.uint64((row + np.int64(1)) * starts_step)])
    here = slot * row_stride
    fill_known_tokens(start, end, before, tokens, here, column_stride, width, input_ids)
    known_end = min(after, np.int64(width))
    fill_following(before + end - start, known_end, tokens, here, column_stride, following, slot)


@kernel(
    "void(int32[::1], int64, int64, int32[::1], int64, int32[::1], int64, int32[::1], int64,"
    " int32[::1], int64, int32[::1], int64, int64, int64, int64, int32[::1], int64, int64,"
    " int32[::1], int64[::1])"
)
def combine_sampled_and_draft_tokens(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    sampled: Int32s,
    sampled_step: int,
    starts: Int32s,
    starts_step: int,
    seq_lens: Int32s,
    lens_step: int,
    known: Int32s,
    known_step: int,
    drafts: Int32s,
    drafts_stride: int,
    drafts_step: int,
    num_slots: int,
    max_drafts: int,
    logits: Int32s,
    logits_step: int,
    num_new_sampled: int,
    input_ids: Int32s,
    indices: Int64s,
) -> None:
    """List the tokens with logits, and write those that are sampled or drafts: one thread for each.

    Reads logits, rows, starts, seq_lens, and of the rows' slots known, sampled and drafts
    (`max_drafts` each); writes its own entry of indices, 0 if no row has that logit, and the
    token's entry of input_ids, which no other thread writes.
    """
    logit = np.int64(cuda.grid(1))
    if logit >= indices.shape[0]:
        return
    row = np.uint32(0)
    first, last = np.int64(0), np.int64(0)
    if num_reqs > 0:
        row = find_request(logits, logits_step, num_reqs, logit)
        first = np.int64(logits[np.uint64(row * logits_step)])
        last = np.int64(logits[np.uint64((row + np.int64(1)) * logits_step)])
    if logit < first or logit >= last:
        indices[np.uint64(logit)] = 0
        return
    token = starts[np.uint64((row + np.int64(1)) * starts_step)] - last + logit
    indices[np.uint64(logit)] = token
    slot = np.int64(rows[np.uint64(row * rows_step)])
    if slot < 0 or slot >= num_slots or token < 0 or token >= input_ids.shape[0]:
        return
    seq_len = np.int64(seq_lens[np.uint64(row * lens_step)])
    prefill_len = np.int64(known[np.uint64(slot * known_step)])
    number = logit - first - num_new_sampled
    draft = find_drafted(number, last - first, seq_len, prefill_len, max_drafts)
    if draft == -1:
        input_ids[np.uint64(token)] = sampled[np.uint64(slot * sampled_step)]
    elif draft >= 0:
        place = np.uint64(slot * drafts_stride + draft * drafts_step)
        input_ids[np.uint64(token)] = drafts[place]


@kernel("void(int32[::1], int64, int64, int32[::1], int64, int64, int32[::1], int32[::1])")
def expand_idx_mapping(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    logits: Int32s,
    logits_step: int,
    words: int,
    slots: Int32s,
    numbers: Int32s,
) -> None:
    """Write the request slot of each logit, and its number in its row: one thread for each logit.

    Reads logits and rows; writes its own entry of numbers, and of slots its `words` words, of which
    the second is the sign; 0 if no row has that logit.
    """
    logit = np.int64(cuda.grid(1))
    if logit >= numbers.shape[0]:
        return
    slot, number = np.int64(0), np.int64(0)
    if num_reqs > 0:
        row = find_request(logits, logits_step, num_reqs, logit)
        first = np.int64(logits[np.uint64(row * logits_step)])
        last = np.int64(logits[np.uint64((row + np.int64(1)) * logits_step)])
        if logit >= first and logit < last:
            slot = np.int64(rows[np.uint64(row * rows_step)])
            number = logit - first
    numbers[np.uint64(logit)] = number
    slots[np.uint64(logit * words)] = slot
    if words == 2:
        slots[np.uint64(logit * 2 + 1)] = slot >> 31
