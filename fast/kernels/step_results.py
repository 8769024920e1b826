"""Kernels for the results of a step: one thread for each batch row.

What is only read is flat memory in words of 32 bits, accessed through its strides; of an int64 the
lower word is read, which comes first. Indices from the caller's data are compared with the bounds
before they are used. No two rows have one request slot, so a slot's state is one thread's.
"""

import numpy as np

from fast._native.compiler import Int32s
from fast.kernels.cuda import cuda, device_function, kernel


@device_function
def query_len(starts: Int32s, step: int, row: int) -> np.int64:
    """Return how many tokens, or logits, a row has, in 64 bits."""
    end = np.int64(starts[np.uint64((row + np.int64(1)) * step)])
    return np.int64(end - starts[np.uint64(row * step)])


@kernel(
    "void(int32[::1], int32[::1], int64, int32[::1], int64, int32[::1], int64, int32[::1], int64,"
    " int64, int32[::1])"
)
def get_num_sampled_and_rejected(
    num_sampled: Int32s,
    seq_lens: Int32s,
    lens_step: int,
    cu_num_logits: Int32s,
    logits_step: int,
    rows: Int32s,
    rows_step: int,
    prefill_len: Int32s,
    known_step: int,
    max_num_reqs: int,
    num_rejected: Int32s,
) -> None:
    """Count sampled and rejected tokens: one thread for each row (x).

    Reads the row's entries of all vectors, and prefill_len of its slot; writes its entry of
    num_sampled, 0 if the row ends inside its prompt, and of num_rejected.
    """
    row = np.int64(cuda.grid(1))
    if row >= num_rejected.shape[0]:
        return
    rejected = np.int64(0)
    slot = np.int64(rows[np.uint64(row * rows_step)])
    if slot >= 0 and slot < max_num_reqs:
        if seq_lens[np.uint64(row * lens_step)] < prefill_len[np.uint64(slot * known_step)]:
            num_sampled[np.uint64(row)] = 0
        else:
            rejected = query_len(cu_num_logits, logits_step, row) - num_sampled[np.uint64(row)]
    num_rejected[np.uint64(row)] = rejected


@kernel(
    "void(int32[::1], int64, int64, int32[::1], int32[::1], int64, int32[::1], int64, int32[::1],"
    " int64, int64, int64, int32[::1], int64, int32[::1], int64, int32[::1], int64, int32[::1],"
    " int64, int32[::1], int32[::1], int64, int64, int64, int32[::1], int64)"
)
def post_update(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    num_computed_tokens: Int32s,
    last_sampled_tokens: Int32s,
    last_words: int,
    counts: Int32s,
    vocab_size: int,
    tokens: Int32s,
    row_stride: int,
    column_stride: int,
    most: int,
    num_sampled: Int32s,
    sampled_step: int,
    num_rejected: Int32s,
    rejected_step: int,
    starts: Int32s,
    starts_step: int,
    all_token_ids: Int32s,
    max_model_len: int,
    total_len: Int32s,
    drafts: Int32s,
    drafts_stride: int,
    drafts_step: int,
    num_drafts: int,
    drafts_out: Int32s,
    draft_words: int,
) -> None:
    """Update the state of requests: one thread for each row (x).

    Reads the row's entries of all that is read by row; reads and writes the state of its slot.
    `vocab_size`, `starts_step` and `num_drafts` are 0 for what is not given. Elements of
    last_sampled_tokens and drafts_out have one word or two, of which the second is the sign.
    """
    row = np.int64(cuda.grid(1))
    if row >= num_reqs:
        return
    slot = np.int64(rows[np.uint64(row * rows_step)])
    if slot < 0 or slot >= total_len.shape[0]:
        return
    length = np.int64(total_len[np.uint64(slot)])
    number = min(np.int64(num_sampled[np.uint64(row * sampled_step)]), np.int64(most))
    token = np.int64(0)
    for at in range(number):
        token = np.int64(tokens[np.uint64(row * row_stride + at * column_stride)])
        place = length + at
        if place >= 0 and place < max_model_len:
            all_token_ids[np.uint64(slot * max_model_len + place)] = token
        if token >= 0 and token < vocab_size:
            counts[np.uint64(slot * vocab_size + token)] += 1
    if number > 0:
        total_len[np.uint64(slot)] = length + number
        last_sampled_tokens[np.uint64(slot * last_words)] = token
        if last_words == 2:
            last_sampled_tokens[np.uint64(slot * 2 + 1)] = token >> 31
    grown = query_len(starts, starts_step, row) - num_rejected[np.uint64(row * rejected_step)]
    num_computed_tokens[np.uint64(slot)] += grown
    for at in range(num_drafts):
        here = row * drafts_stride + at * drafts_step
        there = (slot * num_drafts + at) * draft_words
        drafts_out[np.uint64(there)] = drafts[np.uint64(here)]
        if draft_words == 2:
            drafts_out[np.uint64(there + 1)] = drafts[np.uint64(here + 1)]


@kernel("void(int32[::1], int64, int64, int32[::1], int32[::1], int64)")
def post_update_num_computed_tokens(
    rows: Int32s,
    rows_step: int,
    num_reqs: int,
    num_computed_tokens: Int32s,
    starts: Int32s,
    starts_step: int,
) -> None:
    """Count tokens as computed: one thread for each row (x).

    Reads the row's entries of rows and starts; writes num_computed_tokens of its slot.
    """
    row = np.int64(cuda.grid(1))
    if row >= num_reqs:
        return
    slot = np.int64(rows[np.uint64(row * rows_step)])
    if slot >= 0 and slot < num_computed_tokens.shape[0]:
        num_computed_tokens[np.uint64(slot)] += query_len(starts, starts_step, row)
