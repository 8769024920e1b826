"""Update the state of requests by the results of a step."""

from typing import Any

import numpy as np
import torch

from fast._checks import (
    INT32,
    INT32_OR_INT64,
    MAX_SIZE,
    IntArray,
    check_column,
    check_entries,
    check_length,
    check_range,
    check_request_slots,
    check_row_starts,
    check_states,
    check_tensor,
)
from fast._native import step_results as loops
from fast._native.memory import check_targets, to_host
from fast.checked_mode import is_checked
from fast.kernels import step_results as kernels
from fast.launch import launch_threads, uses_kernels
from fast.operators import check_not_traced
from fast.slots import flat, flat_words


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the sampled and the rejected tokens of each batch row.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. Only checked mode checks the values; otherwise a row whose request slot does not exist is
    a dummy.

    Definition: `reference.get_num_sampled_and_rejected`.
    """
    check_not_traced("get_num_sampled_and_rejected")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    num_reqs, device = idx_mapping.shape[0], idx_mapping.device
    check_tensor("num_sampled", num_sampled, INT32, 1, device)
    check_length("num_sampled", num_sampled.shape[0], num_reqs)
    check_entries("seq_lens", seq_lens, INT32, 1, num_reqs, device)
    check_entries("cu_num_logits", cu_num_logits, INT32, 1, num_reqs + 1, device)
    check_tensor("prefill_len", prefill_len, INT32, 1, device)
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    if checked or on_device:  # otherwise the loop's caller checks what is written
        read = {"seq_lens": seq_lens, "cu_num_logits": cu_num_logits, "idx_mapping": idx_mapping}
        read["prefill_len"] = prefill_len
        check_targets({"num_sampled": num_sampled}, read)
    if checked:
        known = to_host("prefill_len", prefill_len)
        slots, starts = _check_rows(idx_mapping, len(known), "cu_num_logits", cu_num_logits)
        lens = to_host("seq_lens", seq_lens)[:num_reqs]
        rows = np.flatnonzero((slots >= 0) & (lens >= known[slots] if len(known) else False))
        numbers = to_host("num_sampled", num_sampled)[rows]
        check_range("num_sampled", rows, numbers, 0, np.diff(starts)[rows])

    if not on_device:
        rejected = loops.count_rejected(
            num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len
        )
        return num_sampled, rejected
    num_rejected = num_sampled.new_empty(num_reqs)
    torch.autograd.graph.increment_version(num_sampled)  # torch does not see a kernel's writes
    launch_threads(
        kernels.get_num_sampled_and_rejected,
        num_reqs,
        1,
        flat(num_sampled),
        *flat_words("seq_lens", seq_lens),
        *flat_words("cu_num_logits", cu_num_logits),
        *flat_words("idx_mapping", idx_mapping),
        *flat_words("prefill_len", prefill_len),
        prefill_len.shape[0],
        num_rejected,
    )
    return num_sampled, num_rejected


def post_update(
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
    draft_tokens: torch.Tensor | None = None,
    draft_tokens_out: torch.Tensor | None = None,
) -> None:
    """Update the state of a step's requests by what the step has computed and sampled.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. Only checked mode checks the values; otherwise a row whose request slot does not exist is
    a dummy, and tokens for which there is no place are not stored.

    Definition: `reference.post_update`.
    """
    check_not_traced("post_update")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    num_reqs, device = idx_mapping.shape[0], idx_mapping.device
    check_tensor("num_computed_tokens", num_computed_tokens, INT32, 1, device)
    max_num_reqs = num_computed_tokens.shape[0]
    check_column("last_sampled_tokens", last_sampled_tokens, max_num_reqs, device)
    if output_bin_counts is not None:
        check_states("output_bin_counts", output_bin_counts, INT32, 2, max_num_reqs, device)
    check_entries("sampled_tokens", sampled_tokens, INT32_OR_INT64, 2, num_reqs, device)
    check_entries("num_sampled", num_sampled, INT32, 1, num_reqs, device)
    check_entries("num_rejected", num_rejected, INT32, 1, num_reqs, device)
    if query_start_loc is not None:
        check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    check_states("all_token_ids", all_token_ids, INT32, 2, max_num_reqs, device)
    check_states("total_len", total_len, INT32, 1, max_num_reqs, device)
    _check_drafts(draft_tokens, draft_tokens_out, num_reqs, max_num_reqs, device)
    written: dict[str, Any] = {
        "num_computed_tokens": num_computed_tokens,
        "last_sampled_tokens": last_sampled_tokens,
        "output_bin_counts": output_bin_counts,
        "all_token_ids": all_token_ids,
        "total_len": total_len,
        "draft_tokens_out": draft_tokens_out,
    }
    read: dict[str, Any] = {
        "idx_mapping": idx_mapping,
        "sampled_tokens": sampled_tokens,
        "num_sampled": num_sampled,
        "num_rejected": num_rejected,
        "query_start_loc": query_start_loc,
        "draft_tokens": draft_tokens,
    }
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    targets = {name: tensor for name, tensor in written.items() if tensor is not None}
    if checked or on_device:  # otherwise the loop's caller checks what is written
        given = {name: tensor for name, tensor in read.items() if tensor is not None}
        check_targets(targets, given)
    if checked:
        _check_results(**read, **written)

    if not on_device:
        loops.update_requests(**read, **written)
        return
    rows = flat_words("idx_mapping", idx_mapping)
    # What is left out is replaced by memory that is not read: no tokens, counts, or drafts.
    starts, counts, drafts, drafts_out = (rows[0], 0), total_len, (rows[0], 0, 0), total_len
    if query_start_loc is not None:
        starts = flat_words("query_start_loc", query_start_loc)
    if output_bin_counts is not None:
        counts = output_bin_counts
    if draft_tokens is not None and draft_tokens_out is not None:
        drafts, drafts_out = flat_words("draft_tokens", draft_tokens), draft_tokens_out
    torch.autograd.graph.increment_version(list(targets.values()))
    launch_threads(
        kernels.post_update,
        num_reqs,
        1,
        *rows,
        num_reqs,
        flat(num_computed_tokens),
        *_target(last_sampled_tokens),
        flat(counts),
        0 if output_bin_counts is None else output_bin_counts.shape[1],
        *flat_words("sampled_tokens", sampled_tokens),
        sampled_tokens.shape[1],
        *flat_words("num_sampled", num_sampled),
        *flat_words("num_rejected", num_rejected),
        *starts,
        flat(all_token_ids),
        all_token_ids.shape[1],
        flat(total_len),
        *drafts,
        0 if draft_tokens is None else draft_tokens.shape[1],
        *_target(drafts_out),
    )


def post_update_num_computed_tokens(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    """Count the tokens of a step as computed, before it is known which are rejected.

    On a GPU the call does not synchronise, except in checked mode, and can be captured into a CUDA
    graph. Only checked mode checks the values; otherwise a row whose request slot does not exist is
    a dummy.

    Definition: `reference.post_update_num_computed_tokens`.
    """
    check_not_traced("post_update_num_computed_tokens")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    num_reqs, device = idx_mapping.shape[0], idx_mapping.device
    check_tensor("num_computed_tokens", num_computed_tokens, INT32, 1, device)
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    if checked or on_device:  # otherwise the loop's caller checks what is written
        read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
        check_targets({"num_computed_tokens": num_computed_tokens}, read)
    if checked:
        computed = to_host("num_computed_tokens", num_computed_tokens)
        slots, starts = _check_rows(idx_mapping, len(computed), "query_start_loc", query_start_loc)
        _check_computed(computed, slots[slots >= 0], np.diff(starts)[slots >= 0])

    if not on_device:
        loops.add_query_lens(idx_mapping, num_computed_tokens, query_start_loc)
        return
    torch.autograd.graph.increment_version(num_computed_tokens)
    launch_threads(
        kernels.post_update_num_computed_tokens,
        num_reqs,
        1,
        *flat_words("idx_mapping", idx_mapping),
        num_reqs,
        flat(num_computed_tokens),
        *flat_words("query_start_loc", query_start_loc),
    )


def _target(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a contiguous tensor's memory in words of 32 bits, and the words of an element."""
    return flat(tensor).view(INT32), tensor.element_size() // 4


def _check_drafts(
    draft_tokens: Any,
    draft_tokens_out: Any,
    num_reqs: int,
    max_num_reqs: int,
    device: torch.device,
) -> None:
    """Check that draft tokens and their state are given both or not at all, and fit."""
    if draft_tokens is None or draft_tokens_out is None:
        if draft_tokens is not draft_tokens_out:
            missing = "draft_tokens" if draft_tokens is None else "draft_tokens_out"
            raise ValueError(
                f"{missing} is None, expected draft tokens and their state, or neither"
            )
        return
    check_entries("draft_tokens", draft_tokens, INT32_OR_INT64, 2, num_reqs, device)
    check_states("draft_tokens_out", draft_tokens_out, draft_tokens.dtype, 2, max_num_reqs, device)
    num_drafts = draft_tokens.shape[1]
    check_length("draft_tokens_out", draft_tokens_out.shape[1], num_drafts, "num_drafts = ")


def _check_rows(
    idx_mapping: torch.Tensor, max_num_reqs: int, name: str, starts: torch.Tensor | None
) -> tuple[IntArray, IntArray]:
    """Return the request slots of the rows, and where their tokens, or logits, start."""
    slots = to_host("idx_mapping", idx_mapping)
    check_request_slots(slots, max_num_reqs)
    if starts is None:
        return slots, np.zeros(len(slots) + 1, np.int64)
    return slots, check_row_starts(name, to_host(name, starts), len(slots))


def _check_computed(computed: IntArray, slots: IntArray, growth: IntArray) -> None:
    """Check that the computed tokens of some slots stay in their range as they change."""
    least, most = np.maximum(-growth, 0), MAX_SIZE - np.maximum(growth, 0)
    found = computed[slots]
    why = lambda k: f", as it changes by {growth[k]}"  # noqa: E731
    check_range("num_computed_tokens", slots, found, least, most, why)


def _check_results(
    idx_mapping: torch.Tensor,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    num_computed_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    **_: torch.Tensor | None,
) -> None:
    """Check the values of the arguments of `post_update`, for checked mode."""
    computed = to_host("num_computed_tokens", num_computed_tokens)
    all_slots, starts = _check_rows(idx_mapping, len(computed), "query_start_loc", query_start_loc)
    rows = np.flatnonzero(all_slots >= 0)
    slots = all_slots[rows]
    numbers = to_host("num_sampled", num_sampled)[rows].astype(np.int64)
    check_range("num_sampled", rows, numbers, 0, sampled_tokens.shape[1])
    most = MAX_SIZE if output_bin_counts is None else output_bin_counts.shape[1] - 1
    tokens = to_host("sampled_tokens", sampled_tokens)[rows]
    is_sampled = np.arange(tokens.shape[1]) < numbers[:, None]
    wrong = np.argwhere(is_sampled & ((tokens < 0) | (tokens > most)))
    if len(wrong):
        k, column = wrong[0]
        raise ValueError(
            f"sampled_tokens[{rows[k]}, {column}] is {tokens[k, column]}, expected 0 to {most}"
        )
    width, lens = all_token_ids.shape[1], to_host("total_len", total_len)[slots]
    why = lambda k: f", as {numbers[k]} of {width} tokens are new"  # noqa: E731
    check_range("total_len", slots, lens, 0, width - numbers, why)
    rejected = to_host("num_rejected", num_rejected)[rows].astype(np.int64)
    check_range("num_rejected", rows, rejected, 0, MAX_SIZE)
    _check_computed(computed, slots, np.diff(starts)[rows] - rejected)
