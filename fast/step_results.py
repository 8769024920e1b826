"""Update the state of requests by the results of a step."""

from collections.abc import Callable
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
    check_request_slots,
    check_starts,
    check_states,
    check_tensor,
    find_first,
)
from fast._native.memory import check_targets, plain, to_host
from fast._native.step_results import add_query_lens, count_rejected, update_requests
from fast.checked_mode import is_checked
from fast.kernels import step_results as kernels
from fast.launch import launch_threads, uses_kernels
from fast.operators import check_not_traced
from fast.slots import flat


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
    read = {"seq_lens": seq_lens, "cu_num_logits": cu_num_logits, "idx_mapping": idx_mapping}
    read["prefill_len"] = prefill_len
    check_targets({"num_sampled": num_sampled}, read)
    if is_checked():
        known = to_host("prefill_len", prefill_len)
        slots, starts = _rows_on_host(idx_mapping, len(known), "cu_num_logits", cu_num_logits)
        lens = to_host("seq_lens", seq_lens)[:num_reqs]
        rows = np.flatnonzero((slots >= 0) & (lens >= known[slots] if len(known) else False))
        numbers = to_host("num_sampled", num_sampled)[rows]
        _check_range("num_sampled", rows, numbers, 0, np.diff(starts)[rows])

    if not uses_kernels(idx_mapping):
        return num_sampled, count_rejected(num_sampled, **read)
    num_rejected = num_sampled.new_empty(num_reqs)
    launch_threads(
        kernels.get_num_sampled_and_rejected,
        num_reqs,
        1,
        flat(num_sampled),
        *_words("seq_lens", seq_lens),
        *_words("cu_num_logits", cu_num_logits),
        *_words("idx_mapping", idx_mapping),
        *_words("prefill_len", prefill_len),
        prefill_len.shape[0],
        num_rejected,
    )
    torch.autograd.graph.increment_version(num_sampled)
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
    targets = {name: tensor for name, tensor in written.items() if tensor is not None}
    check_targets(targets, {name: tensor for name, tensor in read.items() if tensor is not None})
    if is_checked():
        _check_results(**read, **written)

    if not uses_kernels(idx_mapping):
        update_requests(**read, **written)
        return
    rows = _words("idx_mapping", idx_mapping)
    # What is left out is replaced by memory that is not read: no tokens, counts, or drafts.
    starts, counts, drafts, drafts_out = (rows[0], 0), total_len, (rows[0], 0, 0), total_len
    if query_start_loc is not None:
        starts = _words("query_start_loc", query_start_loc)
    if output_bin_counts is not None:
        counts = output_bin_counts
    if draft_tokens is not None and draft_tokens_out is not None:
        drafts, drafts_out = _words("draft_tokens", draft_tokens), draft_tokens_out
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
        *_words("sampled_tokens", sampled_tokens),
        sampled_tokens.shape[1],
        *_words("num_sampled", num_sampled),
        *_words("num_rejected", num_rejected),
        *starts,
        flat(all_token_ids),
        all_token_ids.shape[1],
        flat(total_len),
        *drafts,
        0 if draft_tokens is None else draft_tokens.shape[1],
        *_target(drafts_out),
    )
    torch.autograd.graph.increment_version(list(targets.values()))


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
    read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
    check_targets({"num_computed_tokens": num_computed_tokens}, read)
    if is_checked():
        computed = to_host("num_computed_tokens", num_computed_tokens)
        slots, starts = _rows_on_host(idx_mapping, len(computed), *[*read.items()][1])
        _check_computed(computed, slots[slots >= 0], np.diff(starts)[slots >= 0])

    if not uses_kernels(idx_mapping):
        add_query_lens(idx_mapping, num_computed_tokens, query_start_loc)
        return
    launch_threads(
        kernels.post_update_num_computed_tokens,
        num_reqs,
        1,
        *_words("idx_mapping", idx_mapping),
        num_reqs,
        flat(num_computed_tokens),
        *_words("query_start_loc", query_start_loc),
    )
    torch.autograd.graph.increment_version(num_computed_tokens)


def _words(name: str, tensor: torch.Tensor) -> Any:
    """Return a tensor's memory in words of 32 bits, for a kernel, and its strides in words.

    Of an int64 a kernel reads the lower word, which comes first.
    """
    tensor = plain(name, tensor)
    words = tensor.element_size() // 4
    return flat(tensor).view(INT32), *(words * step for step in tensor.stride())


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


def _rows_on_host(
    idx_mapping: torch.Tensor, max_num_reqs: int, name: str, starts: torch.Tensor | None
) -> tuple[IntArray, IntArray]:
    """Return the request slots of a batch and where its rows start, checked, for checked mode."""
    slots = to_host("idx_mapping", idx_mapping)
    check_request_slots(slots, max_num_reqs)
    if starts is None:
        return slots, np.zeros(len(slots) + 1, np.int64)
    found = to_host(name, starts)[: len(slots) + 1]
    check_starts(name, found)
    return slots, found.astype(np.int64)


def _check_range(
    name: str,
    at: IntArray,
    values: IntArray,
    least: Any,
    most: Any,
    why: Callable[[int], str] = lambda _: "",
) -> None:
    """Check that entries of a vector are in their ranges; `at` has their indices."""
    k = find_first((values < least) | (values > most))
    if k >= 0:
        least, most = (np.broadcast_to(bound, values.shape)[k] for bound in (least, most))
        raise ValueError(f"{name}[{at[k]}] is {values[k]}, expected {least} to {most}{why(k)}")


def _check_computed(computed: IntArray, slots: IntArray, growth: IntArray) -> None:
    """Check that the computed tokens of some slots stay in their range as they change."""
    least, most = np.maximum(-growth, 0), MAX_SIZE - np.maximum(growth, 0)
    found = computed[slots]
    why = lambda k: f", as it changes by {growth[k]}"  # noqa: E731
    _check_range("num_computed_tokens", slots, found, least, most, why)


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
    all_slots, starts = _rows_on_host(
        idx_mapping, len(computed), "query_start_loc", query_start_loc
    )
    rows = np.flatnonzero(all_slots >= 0)
    slots = all_slots[rows]
    numbers = to_host("num_sampled", num_sampled)[rows].astype(np.int64)
    _check_range("num_sampled", rows, numbers, 0, sampled_tokens.shape[1])
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
    _check_range("total_len", slots, lens, 0, width - numbers, why)
    rejected = to_host("num_rejected", num_rejected)[rows].astype(np.int64)
    _check_range("num_rejected", rows, rejected, 0, MAX_SIZE)
    _check_computed(computed, slots, np.diff(starts)[rows] - rejected)
