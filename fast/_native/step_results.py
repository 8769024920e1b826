"""Update the state of requests by the results of a step.

Loops read through strides, in words of 32 bits (`locate_words`). An index from a caller's data is
compared with the bounds before it is used.
"""

import numpy as np
import torch

from fast._native.compiler import Int32s, compiled, int32s_at
from fast._native.memory import locate_table_words, locate_target, locate_words


def count_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> torch.Tensor:
    """Change `num_sampled` and count rejected tokens: `reference.get_num_sampled_and_rejected`.

    All are on the CPU, with shapes as stated there.
    """
    # What is located, `_lens` and the like, keeps the memory alive during the loop; likewise below.
    lens_at, lens_step, _lens = locate_words("seq_lens", seq_lens)
    starts_at, starts_step, _starts = locate_words("cu_num_logits", cu_num_logits)
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    known_at, known_step, _known = locate_words("prefill_len", prefill_len)
    sampled_at, num_reqs = locate_target("num_sampled", num_sampled)
    rejected = np.empty(num_reqs, dtype=np.int32)
    write_rejected(
        rejected,
        sampled_at,
        lens_at,
        lens_step,
        starts_at,
        starts_step,
        rows_at,
        rows_step,
        known_at,
        known_step,
        prefill_len.nelement(),
    )
    torch.autograd.graph.increment_version(num_sampled)  # torch does not see a loop's writes
    return torch.from_numpy(rejected)


@compiled(f"void(int32[::1], {', '.join(['int64'] * 10)})")
def write_rejected(
    rejected: Int32s,
    sampled_at: int,
    lens_at: int,
    lens_step: int,
    starts_at: int,
    starts_step: int,
    rows_at: int,
    rows_step: int,
    known_at: int,
    known_step: int,
    max_num_reqs: int,
) -> None:
    num_reqs = len(rejected)
    sampled = int32s_at(sampled_at, num_reqs)
    lens = int32s_at(lens_at, num_reqs * lens_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    known = int32s_at(known_at, max_num_reqs * known_step + 1)
    for row in range(num_reqs):
        rejected[row] = 0
        slot = np.int64(rows[row * rows_step])
        if not 0 <= slot < max_num_reqs:
            continue
        if lens[row * lens_step] < known[slot * known_step]:
            sampled[row] = 0
        else:
            num_logits = starts[(row + 1) * starts_step] - starts[row * starts_step]
            rejected[row] = num_logits - sampled[row]


def update_requests(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    draft_tokens: torch.Tensor | None,
    draft_tokens_out: torch.Tensor | None,
) -> None:
    """Update the state of a step's requests: `reference.post_update`.

    All are on the CPU, with shapes as stated there.
    """
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    tokens_at, row_stride, column_stride, _tokens = locate_table_words(
        "sampled_tokens", sampled_tokens
    )
    sampled_at, sampled_step, _sampled = locate_words("num_sampled", num_sampled)
    rejected_at, rejected_step, _rejected = locate_words("num_rejected", num_rejected)
    computed_at, max_num_reqs = locate_target("num_computed_tokens", num_computed_tokens)
    last_at, _ = locate_target("last_sampled_tokens", last_sampled_tokens)
    ids_at, _ = locate_target("all_token_ids", all_token_ids)
    lens_at, _ = locate_target("total_len", total_len)
    written = [num_computed_tokens, last_sampled_tokens, all_token_ids, total_len]
    # What is left out is replaced by memory that is not read: no tokens, counts, or drafts.
    starts_at, starts_step, _starts = rows_at, 0, _rows
    counts_at = num_counts = vocab_size = 0
    drafts_at = drafts_stride = drafts_step = num_drafts = drafts_out_at = draft_words = 0
    _drafts = _rows
    if query_start_loc is not None:
        starts_at, starts_step, _starts = locate_words("query_start_loc", query_start_loc)
    if output_bin_counts is not None:
        counts_at, num_counts = locate_target("output_bin_counts", output_bin_counts)
        vocab_size = output_bin_counts.shape[1]
        written.append(output_bin_counts)
    if draft_tokens is not None and draft_tokens_out is not None:
        drafts_at, drafts_stride, drafts_step, _drafts = locate_table_words(
            "draft_tokens", draft_tokens
        )
        drafts_out_at, _ = locate_target("draft_tokens_out", draft_tokens_out)
        num_drafts, draft_words = draft_tokens.shape[1], draft_tokens.itemsize // 4
        written.append(draft_tokens_out)
    update(
        rows_at,
        rows_step,
        idx_mapping.nelement(),
        tokens_at,
        row_stride,
        column_stride,
        sampled_tokens.shape[1],
        sampled_at,
        sampled_step,
        rejected_at,
        rejected_step,
        starts_at,
        starts_step,
        max_num_reqs,
        computed_at,
        last_at,
        last_sampled_tokens.itemsize // 4,
        counts_at,
        num_counts,
        vocab_size,
        ids_at,
        all_token_ids.shape[1],
        lens_at,
        drafts_at,
        drafts_stride,
        drafts_step,
        num_drafts,
        drafts_out_at,
        draft_words,
    )
    torch.autograd.graph.increment_version(written)


@compiled(f"void({', '.join(['int64'] * 29)})")
def update(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    tokens_at: int,
    row_stride: int,
    column_stride: int,
    most: int,
    sampled_at: int,
    sampled_step: int,
    rejected_at: int,
    rejected_step: int,
    starts_at: int,
    starts_step: int,
    max_num_reqs: int,
    computed_at: int,
    last_at: int,
    last_words: int,
    counts_at: int,
    num_counts: int,
    vocab_size: int,
    ids_at: int,
    max_model_len: int,
    lens_at: int,
    drafts_at: int,
    drafts_stride: int,
    drafts_step: int,
    num_drafts: int,
    drafts_out_at: int,
    draft_words: int,
) -> None:
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    tokens = int32s_at(tokens_at, num_reqs * row_stride + most * column_stride + 1)
    sampled = int32s_at(sampled_at, num_reqs * sampled_step + 1)
    rejected = int32s_at(rejected_at, num_reqs * rejected_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    computed, lens = int32s_at(computed_at, max_num_reqs), int32s_at(lens_at, max_num_reqs)
    last = int32s_at(last_at, max_num_reqs * last_words)
    counts = int32s_at(counts_at, num_counts)
    ids = int32s_at(ids_at, max_num_reqs * max_model_len)
    num_words = num_reqs * drafts_stride + num_drafts * drafts_step + draft_words
    drafts = int32s_at(drafts_at, num_words)
    drafts_out = int32s_at(drafts_out_at, max_num_reqs * num_drafts * draft_words)
    for row in range(num_reqs):
        slot = np.int64(rows[row * rows_step])
        if not 0 <= slot < max_num_reqs:
            continue
        length = np.int64(lens[slot])
        number = min(np.int64(sampled[row * sampled_step]), np.int64(most))
        token = np.int32(0)
        for at in range(number):
            token = tokens[row * row_stride + at * column_stride]
            if 0 <= length + at < max_model_len:
                ids[slot * max_model_len + length + at] = token
            if 0 <= token < vocab_size:
                counts[slot * vocab_size + token] += np.int32(1)
        if number > 0:
            lens[slot] = length + number
            last[slot * last_words] = token
            if last_words == 2:
                last[slot * 2 + 1] = token >> 31
        num_tokens = np.int64(starts[(row + 1) * starts_step]) - starts[row * starts_step]
        computed[slot] += num_tokens - rejected[row * rejected_step]
        for at in range(num_drafts):
            for word in range(draft_words):
                to = (slot * num_drafts + at) * draft_words + word
                drafts_out[to] = drafts[row * drafts_stride + at * drafts_step + word]


def add_query_lens(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    """Count the tokens of a step as computed: `reference.post_update_num_computed_tokens`.

    All are on the CPU, with shapes as stated there.
    """
    rows_at, rows_step, _rows = locate_words("idx_mapping", idx_mapping)
    starts_at, starts_step, _starts = locate_words("query_start_loc", query_start_loc)
    computed_at, max_num_reqs = locate_target("num_computed_tokens", num_computed_tokens)
    num_reqs = idx_mapping.nelement()
    add_lens(rows_at, rows_step, num_reqs, starts_at, starts_step, computed_at, max_num_reqs)
    torch.autograd.graph.increment_version(num_computed_tokens)


@compiled(f"void({', '.join(['int64'] * 7)})")
def add_lens(
    rows_at: int,
    rows_step: int,
    num_reqs: int,
    starts_at: int,
    starts_step: int,
    computed_at: int,
    max_num_reqs: int,
) -> None:
    rows = int32s_at(rows_at, num_reqs * rows_step + 1)
    starts = int32s_at(starts_at, num_reqs * starts_step + 1)
    computed = int32s_at(computed_at, max_num_reqs)
    for row in range(num_reqs):
        slot = np.int64(rows[row * rows_step])
        if 0 <= slot < max_num_reqs:
            computed[slot] += starts[(row + 1) * starts_step] - starts[row * starts_step]
