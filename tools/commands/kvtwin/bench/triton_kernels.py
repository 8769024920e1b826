"""Triton kernels of the usual design, one for each function of `kvtwin.bench.triton_baseline`.

One program does a request (or a request and a group), and loops over its tokens in blocks. A
further program fills what comes after the last request. Sizes that vary from step to step are not
specialised, so that nothing is compiled again.

`rows` is a step's `idx_mapping`, without dummy rows; `starts` its `query_start_loc`; `logits` its
`cu_num_logits`; `computed`, `known` and `lens` are `num_computed_tokens`, `prefill_len` and
`seq_lens`. `tables` and `gathered` have the address of each group's int32[max_num_reqs, width].
"""

import triton
import triton.language as tl

PAD_SLOT_ID = tl.constexpr(-1)


@triton.jit
def fill(out, first, end, value, BLOCK: tl.constexpr):
    """Write a value to `out[first:end]`."""
    for begin in range(first, end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        tl.store(out + at, value, mask=at < end)


# Block tables.


@triton.jit(do_not_specialize=["num_writes"])
def apply_staged_writes(
    staged, num_writes, tables, widths, num_blocks, max_num_reqs, BLOCK: tl.constexpr
):
    """One program a write: its group, row, first column, length and first ID lie in `staged`."""
    head = staged + 5 * tl.program_id(0)
    group = tl.load(head)
    row = tl.load(head + 1)
    column = tl.load(head + 2)
    length = tl.load(head + 3)
    ids = staged + 5 * num_writes + tl.load(head + 4)
    table = tl.load(tables + group).to(tl.pointer_type(tl.int32))
    out = table + row.to(tl.int64) * tl.load(widths + group) + column
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(ids + at, mask=at < length), mask=at < length)
    tl.store(num_blocks + group * max_num_reqs + row, column + length)


@triton.jit
def gather_block_tables(
    rows, tables, gathered, widths, num_blocks, max_num_reqs, BLOCK: tl.constexpr
):
    """One program a row and group; it writes the whole row, with nulls past its blocks."""
    row = tl.program_id(0)
    group = tl.program_id(1)
    slot = tl.load(rows + row).to(tl.int64)
    width = tl.load(widths + group)
    count = tl.load(num_blocks + group * max_num_reqs + slot)
    ids = tl.load(tables + group).to(tl.pointer_type(tl.int32)) + slot * width
    out = tl.load(gathered + group).to(tl.pointer_type(tl.int32)) + row.to(tl.int64) * width
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(ids + at, mask=at < count, other=0), mask=at < width)


@triton.jit
def write_slots(slots, ids, positions, first, end, block_size, BLOCK: tl.constexpr):
    """Write the slots of the tokens `first` to `end` of a request with these block IDs."""
    for begin in range(first, end, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        position = tl.load(positions + at, mask=at < end, other=0)
        block = tl.load(ids + position // block_size, mask=at < end, other=0).to(tl.int64)
        tl.store(slots + at, block * block_size + position % block_size, mask=at < end)


@triton.jit
def compute_slot_mappings(
    rows, starts, positions, tables, widths, sizes, slots, max_num_tokens, BLOCK: tl.constexpr
):
    """One program a row and group, whose blocks are of `sizes[group]`."""
    row = tl.program_id(0)
    group = tl.program_id(1)
    out = slots + group.to(tl.int64) * max_num_tokens
    first = tl.load(starts + row)
    if row == tl.num_programs(0) - 1:
        fill(out, first, max_num_tokens, PAD_SLOT_ID, BLOCK)
        return
    slot = tl.load(rows + row).to(tl.int64)
    ids = tl.load(tables + group).to(tl.pointer_type(tl.int32)) + slot * tl.load(widths + group)
    end = tl.load(starts + row + 1)
    write_slots(out, ids, positions, first, end, tl.load(sizes + group), BLOCK)


@triton.jit(do_not_specialize=["num_tokens"])
def compute_slot_mapping(
    table, width, starts, positions, block_size, slots, num_tokens, BLOCK: tl.constexpr
):
    """One program a row of a table in batch order."""
    row = tl.program_id(0)
    first = tl.load(starts + row)
    if row == tl.num_programs(0) - 1:
        fill(slots, first, num_tokens, PAD_SLOT_ID, BLOCK)
        return
    ids = table + row.to(tl.int64) * width
    write_slots(slots, ids, positions, first, tl.load(starts + row + 1), block_size, BLOCK)


# The inputs of a step.


@triton.jit
def prepare_pos_seq_lens(rows, starts, computed, pos, lens, max_num_reqs, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row == tl.num_programs(0) - 1:
        fill(lens, row, max_num_reqs, 0, BLOCK)
        return
    start = tl.load(starts + row)
    end = tl.load(starts + row + 1)
    num_computed = tl.load(computed + tl.load(rows + row))
    tl.store(lens + row, num_computed + end - start)
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(pos + at, (num_computed - start + at).to(tl.int64), mask=at < end)


@triton.jit
def prepare_prefill_inputs(
    input_ids, next_tokens, rows, starts, all_token_ids, width, known, computed, BLOCK: tl.constexpr
):
    """`all_token_ids` is int32[max_num_reqs, width]."""
    row = tl.program_id(0)
    slot = tl.load(rows + row).to(tl.int64)
    num_computed = tl.load(computed + slot)
    num_known = tl.load(known + slot)
    if num_computed >= num_known:
        return
    start = tl.load(starts + row)
    num_new = tl.load(starts + row + 1) - start
    tokens = all_token_ids + slot * width + num_computed
    for first in range(0, num_new, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(input_ids + start + at, tl.load(tokens + at, mask=at < num_new), mask=at < num_new)
    following = tl.load(tokens + num_new, mask=num_computed + num_new < num_known, other=0)
    tl.store(next_tokens + slot, following)


@triton.jit
def combine_sampled_and_draft_tokens(
    ids,
    rows,
    sampled,
    starts,
    lens,
    known,
    drafts,
    num_drafts,
    logits,
    indices,
    BLOCK: tl.constexpr,
):
    """`BLOCK` is at least the number of logits of a row: a sampled token, then drafts."""
    row = tl.program_id(0)
    slot = tl.load(rows + row).to(tl.int64)
    first_logit = tl.load(logits + row)
    num_logits = tl.load(logits + row + 1) - first_logit
    begin = tl.load(starts + row + 1) - num_logits
    number = tl.arange(0, BLOCK)
    index = (begin + number).to(tl.int64)
    tl.store(indices + first_logit + number, index, mask=number < num_logits)
    length = tl.load(lens + row)
    num_known = tl.load(known + slot)
    if length <= num_known:
        return
    if length - num_logits >= num_known:
        tl.store(ids + begin, tl.load(sampled + slot).to(tl.int32))
    is_draft = (number > 0) & (number < num_logits)
    draft = tl.load(drafts + slot * num_drafts + number - 1, mask=is_draft, other=0)
    tl.store(ids + begin + number, draft.to(tl.int32), mask=is_draft)


@triton.jit
def expand_idx_mapping(rows, logits, slots, numbers, BLOCK: tl.constexpr):
    """`BLOCK` is at least the number of logits of a row."""
    row = tl.program_id(0)
    start = tl.load(logits + row)
    number = tl.arange(0, BLOCK)
    is_logit = start + number < tl.load(logits + row + 1)
    tl.store(slots + start + number, tl.load(rows + row), mask=is_logit)
    tl.store(numbers + start + number, number, mask=is_logit)


@triton.jit(do_not_specialize=["num_reqs", "length"])
def count_local_tokens(
    lens, local_lens, num_reqs, length, dcp_size, dcp_rank, interleave, BLOCK: tl.constexpr
):
    """One program for `BLOCK` requests; entries from `num_reqs` on become 0."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(lens + at, mask=at < num_reqs, other=0)
    in_round = dcp_size * interleave
    rest = total % in_round - dcp_rank * interleave
    rest = tl.minimum(tl.maximum(rest, 0), interleave)
    tl.store(local_lens + at, total // in_round * interleave + rest, mask=at < length)


# The results of a step.


@triton.jit
def get_num_sampled_and_rejected(num_sampled, num_rejected, lens, logits, rows, known):
    row = tl.program_id(0)
    sampled = tl.load(num_sampled + row)
    num_logits = tl.load(logits + row + 1) - tl.load(logits + row)
    is_chunk = tl.load(lens + row) < tl.load(known + tl.load(rows + row))
    tl.store(num_sampled + row, tl.where(is_chunk, 0, sampled))
    tl.store(num_rejected + row, tl.where(is_chunk, 0, num_logits - sampled))


@triton.jit
def post_update(
    rows,
    computed,
    last_sampled,
    tokens,
    max_num_sampled,
    num_sampled,
    num_rejected,
    starts,
    all_token_ids,
    width,
    total_len,
    drafts,
    drafts_out,
    num_drafts,
    BLOCK: tl.constexpr,
):
    """`tokens` is [num_reqs, max_num_sampled], `drafts` [num_reqs, num_drafts <= BLOCK]."""
    row = tl.program_id(0)
    slot = tl.load(rows + row).to(tl.int64)
    sampled = tokens + row.to(tl.int64) * max_num_sampled
    count = tl.load(num_sampled + row)
    length = tl.load(total_len + slot)
    for number in range(count):
        token = tl.load(sampled + number)
        tl.store(all_token_ids + slot * width + length + number, token.to(tl.int32))
    if count > 0:
        tl.store(last_sampled + slot, tl.load(sampled + count - 1))
    tl.store(total_len + slot, length + count)
    num_new = tl.load(starts + row + 1) - tl.load(starts + row) - tl.load(num_rejected + row)
    tl.store(computed + slot, tl.load(computed + slot) + num_new)
    at = tl.arange(0, BLOCK)
    draft = tl.load(drafts + row.to(tl.int64) * num_drafts + at, mask=at < num_drafts)
    tl.store(drafts_out + slot * num_drafts + at, draft, mask=at < num_drafts)


@triton.jit
def post_update_num_computed_tokens(rows, computed, starts):
    row = tl.program_id(0)
    out = computed + tl.load(rows + row)
    tl.store(out, tl.load(out) + tl.load(starts + row + 1) - tl.load(starts + row))


# Metadata.


@triton.jit(do_not_specialize=["length"])
def fill_conv1d_programs(first_programs, batch_ptr, offsets, length, BLOCK: tl.constexpr):
    """One program a sequence: `first_programs[i]` is the first entry of sequence `i`."""
    sequence = tl.program_id(0)
    start = tl.load(first_programs + sequence)
    if sequence == tl.num_programs(0) - 1:
        fill(batch_ptr, start, length, PAD_SLOT_ID, BLOCK)
        fill(offsets, start, length, PAD_SLOT_ID, BLOCK)
        return
    end = tl.load(first_programs + sequence + 1)
    fill(batch_ptr, start, end, sequence, BLOCK)
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(offsets + at, at - start, mask=at < end)


@triton.jit
def gather_columns(table, width, requests, first_columns, out, columns, BLOCK: tl.constexpr):
    """One program a virtual request, whose row has `columns <= BLOCK` columns of its request."""
    row = tl.program_id(0)
    ids = table + tl.load(requests + row).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    column = tl.minimum(tl.load(first_columns + row) + at, width - 1)
    block = tl.load(ids + column, mask=at < columns)
    tl.store(out + row.to(tl.int64) * columns + at, block, mask=at < columns)


@triton.jit(do_not_specialize=["num_indices", "num_starts"])
def count_logits(
    indices, num_indices, starts, num_starts, out, NUM_HALVINGS: tl.constexpr, BLOCK: tl.constexpr
):
    """One program for `BLOCK` starts: how many indices, which increase, are below each."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(starts + at, mask=at < num_starts, other=0)
    low = at * 0
    high = low + num_indices
    for _ in range(NUM_HALVINGS):
        middle = (low + high) // 2
        is_open = low < high
        is_below = is_open & (tl.load(indices + middle, mask=is_open, other=0) < start)
        high = tl.where(is_below, high, middle)
        low = tl.where(is_below, middle + 1, low)
    tl.store(out + at, low, mask=at < num_starts)
