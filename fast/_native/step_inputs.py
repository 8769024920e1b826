"""Write the inputs of a step: positions, lengths, token IDs, and the tokens with logits.

Loops read vectors and tables through their strides, in words of 32 bits (`locate_words`). An index
from a caller's data is compared with the bounds before it is used.
"""

import numpy as np
import torch

from fast._native.compiler import Int32s, Int64s, compiled, int32s_at, int64s_at
from fast._native.memory import locate_table_words, locate_target, locate_words


def fill_positions(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Write positions and lengths, see `reference.prepare_pos_seq_lens`.

    All are on the CPU; `query_start_loc` has at least `num_reqs + 1` entries, `seq_lens` at least
    `num_reqs`.
    """
    # What is located, `_rows` and the like, keeps the memory alive during the loop; likewise below.
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    starts_at, starts_step, _starts = locate_words("query_start_loc", query_start_loc)
    computed_at, computed_step, _computed = locate_words("num_computed_tokens", num_computed_tokens)
    pos_at, num_pos = locate_target("pos", pos)
    lens_at, num_lens = locate_target("seq_lens", seq_lens)
    write_positions(
        rows_at,
        rows_step,
        idx_mapping.nelement(),
        starts_at,
        starts_step,
        computed_at,
        computed_step,
        num_computed_tokens.nelement(),
        pos_at,
        num_pos,
        lens_at,
        num_lens,
    )
    torch.autograd.graph.increment_version([pos, seq_lens])  # torch does not see a loop's writes


@compiled(f"void({', '.join(['int64'] * 12)})")
def write_positions(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    starts_at: int,
    starts_step: int,
    computed_at: int,
    computed_step: int,
    num_slots: int,
    pos_at: int,
    num_pos: int,
    lens_at: int,
    num_lens: int,
) -> None:
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    computed = int32s_at(computed_at, num_slots * computed_step + 1)
    pos, lens = int64s_at(pos_at, num_pos), int32s_at(lens_at, num_lens)
    end = np.int64(starts[0])
    for row in range(num_reqs):
        start, end = end, np.int64(starts[(row + 1) * starts_step])
        slot = np.int64(rows[row * rows_step])
        before = np.int64(0)
        if 0 <= slot < num_slots:
            before = np.int64(computed[slot * computed_step])
        lens[row] = before + end - start
        for token in range(max(start, np.int64(0)), min(end, np.int64(num_pos))):
            pos[np.uint64(token)] = before + token - start
    for row in range(num_reqs, num_lens):
        lens[row] = 0


def fill_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Write the tokens of prefilling rows, see `reference.prepare_prefill_inputs`.

    All are on the CPU, with shapes as stated there.
    """
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    starts_at, starts_step, _starts = locate_words("query_start_loc", query_start_loc)
    tokens_at, row_stride, column_stride, _tokens = locate_table_words(
        "all_token_ids", all_token_ids
    )
    known_at, known_step, _known = locate_words("prefill_len", prefill_len)
    computed_at, computed_step, _computed = locate_words("num_computed_tokens", num_computed_tokens)
    num_slots, width = all_token_ids.shape
    write_prefill_inputs(
        rows_at,
        rows_step,
        idx_mapping.nelement(),
        starts_at,
        starts_step,
        tokens_at,
        row_stride,
        column_stride,
        num_slots,
        width,
        known_at,
        known_step,
        computed_at,
        computed_step,
        *locate_target("input_ids", input_ids),
        *locate_target("next_prefill_tokens", next_prefill_tokens),
    )
    torch.autograd.graph.increment_version([input_ids, next_prefill_tokens])


@compiled(f"void({', '.join(['int64'] * 18)})")
def write_prefill_inputs(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    starts_at: int,
    starts_step: int,
    tokens_at: int,
    row_stride: int,
    column_stride: int,
    num_slots: int,
    width: int,
    known_at: int,
    known_step: int,
    computed_at: int,
    computed_step: int,
    ids_at: int,
    num_ids: int,
    following_at: int,
    num_following: int,
) -> None:
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    tokens = int32s_at(tokens_at, num_slots * row_stride + width * column_stride + 1)
    known = int32s_at(known_at, num_slots * known_step + 1)
    computed = int32s_at(computed_at, num_slots * computed_step + 1)
    ids, following = int32s_at(ids_at, num_ids), int32s_at(following_at, num_following)
    end = np.int64(starts[0])
    for row in range(num_reqs):
        start, end = end, np.int64(starts[(row + 1) * starts_step])
        slot = np.int64(rows[row * rows_step])
        if not 0 <= slot < num_slots:
            continue
        before = np.int64(computed[slot * computed_step])
        after = min(np.int64(known[slot * known_step]), np.int64(width))
        if not 0 <= before < known[slot * known_step]:
            continue
        here = slot * row_stride
        last = min(end, np.int64(num_ids), start + width - before)
        for token in range(max(start, np.int64(0)), last):
            column = before + token - start
            ids[np.uint64(token)] = tokens[np.uint64(here + column * column_stride)]
        column = before + end - start
        for at in range(slot, num_following, num_slots):
            next_token = np.int32(0)
            if 0 <= column < after:
                next_token = tokens[here + column * column_stride]
            following[at] = next_token
            column += 1


def fill_sampled_and_drafts(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled: int,
) -> torch.Tensor:
    """Write the sampled and draft tokens, see `reference.combine_sampled_and_draft_tokens`.

    All are on the CPU, with shapes as stated there. Returns the indices of tokens with logits.
    """
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    sampled_at, sampled_step, _, _sampled = locate_table_words(
        "last_sampled_tokens", last_sampled_tokens
    )
    starts_at, starts_step, _starts = locate_words("query_start_loc", query_start_loc)
    lens_at, lens_step, _lens = locate_words("seq_lens", seq_lens)
    known_at, known_step, _known = locate_words("prefill_len", prefill_len)
    drafts_at, drafts_stride, drafts_step, _drafts = locate_table_words(
        "draft_tokens", draft_tokens
    )
    logits_at, logits_step, _logits = locate_words("cu_num_logits", cu_num_logits)
    num_slots, max_drafts = draft_tokens.shape
    ids_at, num_ids = locate_target("input_ids", input_ids)
    indices = np.zeros(num_logits, dtype=np.int64)
    write_sampled_and_drafts(
        rows_at,
        rows_step,
        idx_mapping.nelement(),
        sampled_at,
        sampled_step,
        starts_at,
        starts_step,
        lens_at,
        lens_step,
        known_at,
        known_step,
        drafts_at,
        drafts_stride,
        drafts_step,
        num_slots,
        max_drafts,
        logits_at,
        logits_step,
        num_new_sampled,
        ids_at,
        num_ids,
        indices,
    )
    torch.autograd.graph.increment_version(input_ids)
    return torch.from_numpy(indices)


@compiled(f"void({', '.join(['int64'] * 21)}, int64[::1])")
def write_sampled_and_drafts(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    sampled_at: int,
    sampled_step: int,
    starts_at: int,
    starts_step: int,
    lens_at: int,
    lens_step: int,
    known_at: int,
    known_step: int,
    drafts_at: int,
    drafts_stride: int,
    drafts_step: int,
    num_slots: int,
    max_drafts: int,
    logits_at: int,
    logits_step: int,
    num_new_sampled: int,
    ids_at: int,
    num_ids: int,
    indices: Int64s,
) -> None:
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    sampled = int32s_at(sampled_at, num_slots * sampled_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    lens = int32s_at(lens_at, num_reqs * lens_step + 1)
    known = int32s_at(known_at, num_slots * known_step + 1)
    drafts = int32s_at(drafts_at, num_slots * drafts_stride + max_drafts * drafts_step + 1)
    logits = int32s_at(logits_at, num_reqs * logits_step + 1)
    ids = int32s_at(ids_at, num_ids)
    last = np.int64(logits[0])
    for row in range(num_reqs):
        first, last = last, np.int64(logits[(row + 1) * logits_step])
        end = np.int64(starts[(row + 1) * starts_step])
        seq_len = np.int64(lens[row * lens_step])
        slot = np.int64(rows[row * rows_step])
        is_past = 0 <= slot < num_slots and seq_len > known[slot * known_step]
        takes_sampled = is_past and seq_len - (last - first) >= known[slot * known_step]
        for at in range(max(first, np.int64(0)), min(last, np.int64(len(indices)))):
            token = end - last + at
            indices[np.uint64(at)] = token
            draft = at - first - num_new_sampled
            if not is_past or not 0 <= token < num_ids:
                continue
            if draft < 0:
                if takes_sampled:
                    ids[token] = sampled[slot * sampled_step]
            elif draft < max_drafts:
                ids[token] = drafts[slot * drafts_stride + draft * drafts_step]


def expand_slots(
    idx_mapping: torch.Tensor, num_logits: int, cu_num_logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the request slot of each logit and its number, see `reference.expand_idx_mapping`.

    Both are on the CPU; `cu_num_logits` has at least `num_reqs + 1` entries.
    """
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    logits_at, logits_step, _logits = locate_words("cu_num_logits", cu_num_logits)
    num_reqs, words = idx_mapping.nelement(), idx_mapping.itemsize // 4
    slots = np.zeros(num_logits, dtype=np.int32 if words == 1 else np.int64)
    numbers = np.zeros(num_logits, dtype=np.int32)
    write_expanded(
        rows_at,
        rows_step,
        num_reqs,
        logits_at,
        logits_step,
        words,
        slots.view(np.int32),
        numbers,
    )
    return torch.from_numpy(slots), torch.from_numpy(numbers)


@compiled("void(int64, int64, int64, int64, int64, int64, int32[::1], int32[::1])")
def write_expanded(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    logits_at: int,
    logits_step: int,
    words: int,
    slots: Int32s,
    numbers: Int32s,
) -> None:
    """Write slots of `words` words each, of which the second is the sign, and numbers."""
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    logits = int32s_at(logits_at, num_reqs * logits_step + 1)
    last = np.int64(logits[0])
    for row in range(num_reqs):
        first, last = last, np.int64(logits[(row + 1) * logits_step])
        slot = rows[row * rows_step]
        for at in range(max(first, np.int64(0)), min(last, np.int64(len(numbers)))):
            slots[at * words] = slot
            if words == 2:
                slots[at * 2 + 1] = slot >> 31
            numbers[at] = at - first
