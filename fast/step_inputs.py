"""Prepare the inputs of a step: positions, lengths, token IDs, and the tokens with logits.

On a GPU no function here synchronises, except in checked mode, and each can be captured into a CUDA
graph; all tensors of a call must be on one device. Outside checked mode a row is a dummy if its
request slot does not exist, and nothing outside the tensors that are written changes.
"""

from typing import Any

import numpy as np
import torch

from fast._checks import (
    INT32,
    INT32_OR_INT64,
    INT64,
    MAX_SIZE,
    IntArray,
    check_column,
    check_entries,
    check_int,
    check_length,
    check_minimum,
    check_range,
    check_request_slots,
    check_row_starts,
    check_states,
    check_tensor,
    find_first,
)
from fast._native import step_inputs as loops
from fast._native.memory import check_targets, to_host
from fast.checked_mode import is_checked
from fast.kernels import step_inputs as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.operators import check_not_traced
from fast.slots import flat, flat_words


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Write the position of each token and the length of each sequence.

    Only checked mode rejects what is wrong with the values of tensors, and with shared memory.

    Definition: `reference.prepare_pos_seq_lens`.
    """
    check_not_traced("prepare_pos_seq_lens")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("num_computed_tokens", num_computed_tokens, INT32, 1, device)
    check_tensor("pos", pos, INT64, 1, device)
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    check_entries("seq_lens", seq_lens, INT32, 1, num_reqs, device)
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    if checked or on_device:  # otherwise the loop's caller checks what is written
        read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
        read["num_computed_tokens"] = num_computed_tokens
        check_targets({"pos": pos, "seq_lens": seq_lens}, read)
    if checked:
        computed = to_host("num_computed_tokens", num_computed_tokens)
        slots, starts = _check_rows(idx_mapping, query_start_loc, len(computed))
        _check_num_tokens("pos", len(pos), starts)
        _check_states("num_computed_tokens", computed, slots, MAX_SIZE)
        _check_ends(computed, slots, starts, MAX_SIZE, str(MAX_SIZE), slots >= 0)

    if not on_device:
        loops.fill_positions(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens)
        return
    torch.autograd.graph.increment_version([pos, seq_lens])  # torch does not see a kernel's writes
    launch_blocks(
        kernels.prepare_pos_seq_lens,
        num_reqs + (len(seq_lens) > num_reqs),
        1,
        *flat_words("idx_mapping", idx_mapping),
        num_reqs,
        *flat_words("query_start_loc", query_start_loc),
        *flat_words("num_computed_tokens", num_computed_tokens),
        len(num_computed_tokens),
        flat(pos),
        flat(seq_lens),
    )


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Write the token IDs of the rows that are prefilling, and the tokens after them.

    Only checked mode rejects what is wrong with the values of tensors, and with shared memory.

    Definition: `reference.prepare_prefill_inputs`.
    """
    check_not_traced("prepare_prefill_inputs")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("input_ids", input_ids, INT32, 1, device)
    check_tensor("next_prefill_tokens", next_prefill_tokens, INT32, 2, device)
    check_tensor("all_token_ids", all_token_ids, INT32, 2, device)
    num_slots, width = all_token_ids.shape
    check_states("prefill_len", prefill_len, INT32, 1, num_slots, device)
    check_states("num_computed_tokens", num_computed_tokens, INT32, 1, num_slots, device)
    columns = next_prefill_tokens.shape[1]
    check_length("next_prefill_tokens", columns, num_slots, "max_num_reqs = ", "columns")
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    if checked or on_device:  # otherwise the loop's caller checks what is written
        read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
        read |= {"all_token_ids": all_token_ids, "prefill_len": prefill_len}
        read["num_computed_tokens"] = num_computed_tokens
        check_targets({"input_ids": input_ids, "next_prefill_tokens": next_prefill_tokens}, read)
    if checked:
        slots, starts = _check_rows(idx_mapping, query_start_loc, num_slots)
        _check_num_tokens("input_ids", len(input_ids), starts)
        computed = to_host("num_computed_tokens", num_computed_tokens)
        known = to_host("prefill_len", prefill_len)
        _check_states("num_computed_tokens", computed, slots, MAX_SIZE)
        _check_states("prefill_len", known, slots, width)
        is_prefilling = (slots >= 0) & (_at(computed, slots) < _at(known, slots))
        limit = f"the {width} columns of all_token_ids"
        _check_ends(computed, slots, starts, width, limit, is_prefilling)

    if not on_device:
        loops.fill_prefill_inputs(
            input_ids,
            next_prefill_tokens,
            idx_mapping,
            query_start_loc,
            all_token_ids,
            prefill_len,
            num_computed_tokens,
        )
        return
    torch.autograd.graph.increment_version([input_ids, next_prefill_tokens])
    launch_blocks(
        kernels.prepare_prefill_inputs,
        num_reqs,
        1,
        *flat_words("idx_mapping", idx_mapping),
        num_reqs,
        *flat_words("query_start_loc", query_start_loc),
        *flat_words("all_token_ids", all_token_ids),
        width,
        *flat_words("prefill_len", prefill_len),
        *flat_words("num_computed_tokens", num_computed_tokens),
        flat(input_ids),
        flat(next_prefill_tokens).view(next_prefill_tokens.shape),
    )


def combine_sampled_and_draft_tokens(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled_tokens: int = 1,
) -> torch.Tensor:
    """Write the sampled and draft tokens of a step, and list the tokens that have logits.

    Only checked mode rejects what is wrong with the values of tensors, and with shared memory.
    Outside it the index of a logit past `cu_num_logits[num_reqs]` is 0.

    Definition: `reference.combine_sampled_and_draft_tokens`.
    """
    check_not_traced("combine_sampled_and_draft_tokens")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("input_ids", input_ids, INT32, 1, device)
    check_tensor("prefill_len", prefill_len, INT32, 1, device)
    num_slots = prefill_len.shape[0]
    check_column("last_sampled_tokens", last_sampled_tokens, num_slots, device)
    check_states("draft_tokens", draft_tokens, INT32_OR_INT64, 2, num_slots, device)
    num_new_sampled = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    check_entries("seq_lens", seq_lens, INT32, 1, num_reqs, device)
    num_logits = check_int("num_logits", num_logits, 0)
    check_entries("cu_num_logits", cu_num_logits, INT32, 1, num_reqs + 1, device)
    read = {
        "idx_mapping": idx_mapping,
        "last_sampled_tokens": last_sampled_tokens,
        "query_start_loc": query_start_loc,
        "seq_lens": seq_lens,
        "prefill_len": prefill_len,
        "draft_tokens": draft_tokens,
        "cu_num_logits": cu_num_logits,
    }
    checked, on_device = is_checked(), uses_kernels(idx_mapping)
    if checked or on_device:  # otherwise the loop's caller checks what is written
        check_targets({"input_ids": input_ids}, read)
    if checked:
        host = {name: to_host(name, tensor) for name, tensor in read.items()}
        _check_combination(host, len(input_ids), num_logits, num_new_sampled)

    if not on_device:
        return loops.fill_sampled_and_drafts(
            input_ids, **read, num_logits=num_logits, num_new_sampled=num_new_sampled
        )
    indices = torch.empty(num_logits, dtype=INT64, device=device)
    torch.autograd.graph.increment_version(input_ids)
    words = {name: flat_words(name, tensor) for name, tensor in read.items()}
    launch_threads(
        kernels.combine_sampled_and_draft_tokens,
        num_logits,
        1,
        *words["idx_mapping"],
        num_reqs,
        *words["last_sampled_tokens"][:2],
        *words["query_start_loc"],
        *words["seq_lens"],
        *words["prefill_len"],
        *words["draft_tokens"],
        *draft_tokens.shape,
        *words["cu_num_logits"],
        num_new_sampled,
        flat(input_ids),
        indices,
    )
    return indices


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the request slot of each logit, and its number within its row.

    Only checked mode rejects what is wrong with the values of tensors. Outside it both are 0 for
    logits past `cu_num_logits[num_reqs]`.

    Definition: `reference.expand_idx_mapping`.
    """
    check_not_traced("expand_idx_mapping")
    check_tensor("idx_mapping", idx_mapping, INT32_OR_INT64, 1)
    most = check_int("max_expand_len", max_expand_len)
    total = check_int("total_num_logits", total_num_logits, 0)
    num_reqs = idx_mapping.shape[0]
    check_entries("cu_num_logits", cu_num_logits, INT32, 1, num_reqs + 1, idx_mapping.device)
    if is_checked():
        check_request_slots(to_host("idx_mapping", idx_mapping), MAX_SIZE + 1)
        cumulated = to_host("cu_num_logits", cu_num_logits)
        logits = _check_logits(cumulated, num_reqs, "total_num_logits", total)
        counts = np.diff(logits)
        row = find_first(counts > most)
        if row >= 0:
            raise ValueError(
                f"cu_num_logits[{row + 1}] is {logits[row + 1]}, {counts[row]} more than before it,"
                f" expected at most max_expand_len = {most}"
            )

    if not uses_kernels(idx_mapping):
        return loops.expand_slots(idx_mapping, total, cu_num_logits)
    slots = idx_mapping.new_empty(total)
    numbers = cu_num_logits.new_empty(total)
    launch_threads(
        kernels.expand_idx_mapping,
        total,
        1,
        *flat_words("idx_mapping", idx_mapping),
        num_reqs,
        *flat_words("cu_num_logits", cu_num_logits),
        idx_mapping.element_size() // 4,
        slots.view(INT32),
        numbers,
    )
    return slots, numbers


def _at(values: IntArray, slots: IntArray) -> IntArray:
    """Return the values of the rows' request slots, and 0 for a dummy row."""
    found = np.zeros(len(slots), np.int64)
    found[slots >= 0] = values[slots[slots >= 0]]
    return found


def _check_rows(
    idx_mapping: torch.Tensor, query_start_loc: torch.Tensor, num_slots: int
) -> tuple[IntArray, IntArray]:
    """Return the request slots of the rows, and where their tokens start, with the end."""
    slots = to_host("idx_mapping", idx_mapping)
    check_request_slots(slots, num_slots)
    starts = to_host("query_start_loc", query_start_loc)
    return slots, check_row_starts("query_start_loc", starts, len(slots))


def _check_logits(cu_num_logits: IntArray, num_reqs: int, name: str, number: int) -> IntArray:
    logits = check_row_starts("cu_num_logits", cu_num_logits, num_reqs)
    if logits[-1] != number:
        raise ValueError(f"cu_num_logits[{num_reqs}] is {logits[-1]}, but {name} is {number}")
    return logits


def _check_num_tokens(name: str, length: int, starts: IntArray) -> None:
    if starts[-1] > length:
        raise ValueError(
            f"query_start_loc[{len(starts) - 1}] is {starts[-1]}, but {name} has {length} entries"
        )


def _check_states(name: str, values: IntArray, slots: IntArray, most: int) -> None:
    """Check that the values of the rows' request slots are in `0 .. most`."""
    requests = slots[slots >= 0]
    check_range(name, requests, values[requests], 0, most)


def _check_ends(
    computed: IntArray, slots: IntArray, starts: IntArray, most: int, limit: str, of_rows: Any
) -> None:
    """Check that rows end at `most` at the latest."""
    before, num_new = _at(computed, slots), np.diff(starts)
    row = find_first(of_rows & (before + num_new > most))
    if row >= 0:
        raise ValueError(
            f"num_computed_tokens[{slots[row]}] is {before[row]}, with {num_new[row]} new tokens"
            f" more than {limit}"
        )


def _check_combination(
    host: dict[str, IntArray], num_ids: int, num_logits: int, num_new_sampled: int
) -> None:
    """Check the values of the arguments of `combine_sampled_and_draft_tokens`."""
    slots = host["idx_mapping"]
    check_request_slots(slots, len(host["prefill_len"]))
    starts = check_row_starts("query_start_loc", host["query_start_loc"], len(slots))
    logits = _check_logits(host["cu_num_logits"], len(slots), "num_logits", num_logits)
    _check_num_tokens("input_ids", num_ids, starts)
    lens = host["seq_lens"][: len(slots)].astype(np.int64)
    check_minimum("seq_lens", lens, 0)
    _check_states("prefill_len", host["prefill_len"], slots, MAX_SIZE)
    num_tokens, counts = np.diff(starts), np.diff(logits)
    row = find_first(counts > num_tokens)
    if row >= 0:
        raise ValueError(
            f"cu_num_logits[{row + 1}] is {logits[row + 1]}, {counts[row]} more than before it, but"
            f" row {row} has {num_tokens[row]} tokens"
        )
    known, drafts = _at(host["prefill_len"], slots), host["draft_tokens"]
    is_past = (slots >= 0) & (lens > known) & (counts > 0)
    num_drafts = np.maximum(counts - num_new_sampled, 0)
    room = np.minimum(lens - known, drafts.shape[1])
    row = find_first(is_past & (num_drafts > room))
    if row >= 0:
        raise ValueError(
            f"cu_num_logits[{row + 1}] is {logits[row + 1]}: row {row} has {num_drafts[row]} draft"
            f" tokens, expected at most {room[row]}"
        )
    sampled = host["last_sampled_tokens"].reshape(-1)
    for row in np.flatnonzero(is_past).tolist():
        first = starts[row + 1] - counts[row] + num_new_sampled
        tokens = drafts[slots[row], : num_drafts[row]]
        if num_new_sampled and lens[row] - counts[row] >= known[row]:
            first, tokens = first - 1, np.append(sampled[slots[row]], tokens)
        at = find_first((tokens < -MAX_SIZE - 1) | (tokens > MAX_SIZE))
        if at >= 0:
            raise ValueError(
                f"the token for input_ids[{first + at}] is {tokens[at]}, expected {-MAX_SIZE - 1}"
                f" to {MAX_SIZE}"
            )
