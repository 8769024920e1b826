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
    INT64,
    MAX_SIZE,
    IntArray,
    check_entries,
    check_int,
    check_length,
    check_minimum,
    check_starts,
    check_tensor,
    find_first,
)
from fast._native import step_inputs as loops
from fast._native.memory import check_targets, plain, to_host
from fast.checked_mode import is_checked
from fast.kernels import step_inputs as kernels
from fast.launch import launch_blocks, launch_threads, uses_kernels
from fast.operators import check_not_traced
from fast.slots import flat

INTS = (INT32, INT64)


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
    check_tensor("idx_mapping", idx_mapping, INTS, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("num_computed_tokens", num_computed_tokens, INT32, 1, device)
    check_tensor("pos", pos, INT64, 1, device)
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    check_entries("seq_lens", seq_lens, INT32, 1, num_reqs, device)
    if is_checked():
        computed = to_host("num_computed_tokens", num_computed_tokens)
        slots, starts = _check_rows(idx_mapping, query_start_loc, len(computed))
        _check_num_tokens("pos", len(pos), starts)
        _check_states("num_computed_tokens", computed, slots, MAX_SIZE)
        _check_ends(computed, slots, starts, MAX_SIZE, str(MAX_SIZE), slots >= 0)
    read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
    read["num_computed_tokens"] = num_computed_tokens
    check_targets({"pos": pos, "seq_lens": seq_lens}, read)

    if not uses_kernels(idx_mapping):
        loops.fill_positions(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens)
        return
    launch_blocks(
        kernels.prepare_pos_seq_lens,
        num_reqs + (len(seq_lens) > num_reqs),
        1,
        *_words("idx_mapping", idx_mapping),
        num_reqs,
        *_words("query_start_loc", query_start_loc),
        *_words("num_computed_tokens", num_computed_tokens),
        len(num_computed_tokens),
        *_written(pos, seq_lens),
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
    check_tensor("idx_mapping", idx_mapping, INTS, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("input_ids", input_ids, INT32, 1, device)
    check_tensor("next_prefill_tokens", next_prefill_tokens, INT32, 2, device)
    check_tensor("all_token_ids", all_token_ids, INT32, 2, device)
    num_slots, width = all_token_ids.shape
    _check_state_vector("prefill_len", prefill_len, num_slots, device)
    _check_state_vector("num_computed_tokens", num_computed_tokens, num_slots, device)
    if next_prefill_tokens.shape[1] != num_slots:
        raise ValueError(
            f"next_prefill_tokens has {next_prefill_tokens.shape[1]} columns, expected"
            f" max_num_reqs = {num_slots}"
        )
    check_entries("query_start_loc", query_start_loc, INT32, 1, num_reqs + 1, device)
    if is_checked():
        slots, starts = _check_rows(idx_mapping, query_start_loc, num_slots)
        _check_num_tokens("input_ids", len(input_ids), starts)
        computed = to_host("num_computed_tokens", num_computed_tokens)
        known = to_host("prefill_len", prefill_len)
        _check_states("num_computed_tokens", computed, slots, MAX_SIZE)
        _check_states("prefill_len", known, slots, width)
        is_prefilling = (slots >= 0) & (_at(computed, slots) < _at(known, slots))
        limit = f"the {width} columns of all_token_ids"
        _check_ends(computed, slots, starts, width, limit, is_prefilling)
    read = {"idx_mapping": idx_mapping, "query_start_loc": query_start_loc}
    read |= {"all_token_ids": all_token_ids, "prefill_len": prefill_len}
    read["num_computed_tokens"] = num_computed_tokens
    check_targets({"input_ids": input_ids, "next_prefill_tokens": next_prefill_tokens}, read)

    if not uses_kernels(idx_mapping):
        loops.fill_prefill_inputs(input_ids, next_prefill_tokens, **read)
        return
    launch_blocks(
        kernels.prepare_prefill_inputs,
        num_reqs,
        1,
        *_words("idx_mapping", idx_mapping),
        num_reqs,
        *_words("query_start_loc", query_start_loc),
        *_words("all_token_ids", all_token_ids),
        width,
        *_words("prefill_len", prefill_len),
        *_words("num_computed_tokens", num_computed_tokens),
        *_written(input_ids, next_prefill_tokens),
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
    check_tensor("idx_mapping", idx_mapping, INTS, 1)
    device, num_reqs = idx_mapping.device, idx_mapping.shape[0]
    check_tensor("input_ids", input_ids, INT32, 1, device)
    check_tensor("prefill_len", prefill_len, INT32, 1, device)
    num_slots = prefill_len.shape[0]
    # A vector, or a matrix of one column.
    is_matrix = isinstance(last_sampled_tokens, torch.Tensor) and last_sampled_tokens.dim() > 1
    check_tensor("last_sampled_tokens", last_sampled_tokens, INTS, 1 + is_matrix, device)
    if tuple(last_sampled_tokens.shape) not in ((num_slots,), (num_slots, 1)):
        raise ValueError(
            f"last_sampled_tokens has shape {tuple(last_sampled_tokens.shape)}, expected"
            f" max_num_reqs = {num_slots} entries"
        )
    check_tensor("draft_tokens", draft_tokens, INTS, 2, device)
    check_length("draft_tokens", len(draft_tokens), num_slots, "max_num_reqs = ")
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
    if is_checked():
        host = {name: to_host(name, tensor) for name, tensor in read.items()}
        _check_combination(host, len(input_ids), num_logits, num_new_sampled)
    check_targets({"input_ids": input_ids}, read)

    if not uses_kernels(idx_mapping):
        return loops.fill_sampled_and_drafts(
            input_ids, **read, num_logits=num_logits, num_new_sampled=num_new_sampled
        )
    indices = torch.empty(num_logits, dtype=INT64, device=device)
    words = {name: _words(name, tensor) for name, tensor in read.items()}
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
        *_written(input_ids),
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
    check_tensor("idx_mapping", idx_mapping, INTS, 1)
    most = check_int("max_expand_len", max_expand_len)
    total = check_int("total_num_logits", total_num_logits, 0)
    num_reqs = idx_mapping.shape[0]
    check_entries("cu_num_logits", cu_num_logits, INT32, 1, num_reqs + 1, idx_mapping.device)
    if is_checked():
        _check_slots(to_host("idx_mapping", idx_mapping), MAX_SIZE + 1)
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
        *_words("idx_mapping", idx_mapping),
        num_reqs,
        *_words("cu_num_logits", cu_num_logits),
        idx_mapping.element_size() // 4,
        slots.view(INT32),
        numbers,
    )
    return slots, numbers


def _words(name: str, tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a tensor's memory as 32-bit words in one dimension, and its strides in words."""
    whole = plain(name, tensor)
    words = whole.element_size() // 4
    return flat(whole).view(INT32), *(words * step for step in whole.stride())


def _written(*targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    for target in targets:
        torch.autograd.graph.increment_version(target)  # torch does not see a kernel's writes
    return targets


def _check_state_vector(name: str, value: Any, num_slots: int, device: torch.device) -> None:
    check_tensor(name, value, INT32, 1, device)
    check_length(name, value.shape[0], num_slots, "max_num_reqs = ")


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
    _check_slots(slots, num_slots)
    starts = to_host("query_start_loc", query_start_loc)
    return slots, _check_starts("query_start_loc", starts, len(slots))


def _check_slots(slots: IntArray, num_slots: int) -> None:
    row = find_first((slots < -1) | (slots >= num_slots))
    if row >= 0:
        raise ValueError(f"idx_mapping[{row}] is {slots[row]}, expected -1 to {num_slots - 1}")
    _, first, place = np.unique(slots, return_index=True, return_inverse=True)
    row = find_first((slots >= 0) & (first[place] < np.arange(len(slots))))
    if row >= 0:
        raise ValueError(f"idx_mapping[{row}] is {slots[row]}, the request slot of another row too")


def _check_starts(name: str, starts: IntArray, num_reqs: int) -> IntArray:
    found = starts[: num_reqs + 1].astype(np.int64)
    check_starts(name, found)
    return found


def _check_logits(cu_num_logits: IntArray, num_reqs: int, name: str, number: int) -> IntArray:
    logits = _check_starts("cu_num_logits", cu_num_logits, num_reqs)
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
    rows = _at(values, slots)
    row = find_first((rows < 0) | (rows > most))
    if row >= 0:
        raise ValueError(f"{name}[{slots[row]}] is {rows[row]}, expected 0 to {most}")


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
    _check_slots(slots, len(host["prefill_len"]))
    starts = _check_starts("query_start_loc", host["query_start_loc"], len(slots))
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
