"""Results of a step: how many tokens were sampled and rejected, and the requests after it."""

from __future__ import annotations

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    DUMMY_ROW,
    MAX_INT32,
    Int32Array,
    IntArray,
    check_array,
    check_column,
    check_int,
    check_length,
    check_request_slots,
    check_row_starts,
    check_states,
    check_written,
)


def get_num_sampled_and_rejected(
    num_sampled: Int32Array,
    seq_lens: Int32Array,
    cu_num_logits: Int32Array,
    idx_mapping: IntArray,
    prefill_len: Int32Array,
) -> tuple[Int32Array, Int32Array]:
    """Count the sampled and the rejected tokens of each batch row.

    A row whose chunk ends inside the prompt, `seq_lens[r] < prefill_len[idx_mapping[r]]`, samples
    nothing: both of its counts are 0. Any other row rejects those of its logits,
    `cu_num_logits[r + 1] - cu_num_logits[r]`, for which no token was sampled. A dummy row keeps its
    entry of `num_sampled` and rejects nothing.

    Args:
        num_sampled: int32[num_reqs], the tokens that the sampler returned for each row; changed in
            place. Contiguous. For a row that samples nothing it may be any number.
        seq_lens: int32[at least num_reqs], the length of each row's sequence after the step.
        cu_num_logits: int32[at least num_reqs + 1], where each row's logits start; begins at 0 and
            does not decrease.
        idx_mapping: int32 or int64[num_reqs], the request slot of each row, -1 for a dummy. Two
            rows never have one slot.
        prefill_len: int32[max_num_reqs], by request slot, the tokens known before any is sampled.

    Returns:
        `num_sampled` itself, and a new int32[num_reqs], the rejected tokens of each row.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: A wrong length or number of dimensions; starts that do not begin at 0, or
            decrease; a request slot that two rows have; a row that samples fewer than 0 tokens or
            more than it has logits; a `num_sampled` that is not contiguous, is read-only or shares
            memory with another argument. Nothing is written.

    Example:
        >>> import numpy as np
        >>> num_sampled = np.array([1, 1, 2], np.int32)  # the second row ends inside its prompt
        >>> seq_lens = np.array([9, 4, 8], np.int32)
        >>> cu_num_logits = np.array([0, 1, 2, 6], np.int32)
        >>> idx_mapping = np.array([2, 0, 1], np.int32)
        >>> prefill_len = np.array([6, 5, 9], np.int32)
        >>> sampled, rejected = get_num_sampled_and_rejected(
        ...     num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len
        ... )
        >>> sampled is num_sampled, sampled.tolist(), rejected.tolist()
        (True, [1, 0, 2], [0, 0, 2])

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    check_array("prefill_len", prefill_len, np.int32, 1)
    slots = check_request_slots(idx_mapping, len(prefill_len))
    num_reqs = len(slots)
    check_length("num_sampled", len(check_array("num_sampled", num_sampled, np.int32, 1)), num_reqs)
    check_array("seq_lens", seq_lens, np.int32, 1, num_reqs)
    starts = check_row_starts("cu_num_logits", cu_num_logits, num_reqs)
    check_written({"num_sampled": num_sampled}, [seq_lens, cu_num_logits, idx_mapping, prefill_len])

    sampled: list[int] = num_sampled.tolist()
    rejected = [0] * num_reqs
    for row, slot in enumerate(slots):
        if slot == DUMMY_ROW:
            continue
        if seq_lens[row] < prefill_len[slot]:
            sampled[row] = 0
            continue
        num_logits = starts[row + 1] - starts[row]
        if not 0 <= sampled[row] <= num_logits:
            raise ValueError(f"num_sampled[{row}] is {sampled[row]}, expected 0 to {num_logits}")
        rejected[row] = num_logits - sampled[row]
    num_sampled[:] = sampled
    return num_sampled, np.array(rejected, np.int32)


def post_update(
    idx_mapping: IntArray,
    num_computed_tokens: Int32Array,
    last_sampled_tokens: IntArray,
    output_bin_counts: Int32Array | None,
    sampled_tokens: IntArray,
    num_sampled: Int32Array,
    num_rejected: Int32Array,
    query_start_loc: Int32Array | None,
    all_token_ids: Int32Array,
    total_len: Int32Array,
    draft_tokens: IntArray | None = None,
    draft_tokens_out: IntArray | None = None,
) -> None:
    """Update the state of a step's requests by what the step has computed and sampled.

    For each row `r` with the request slot `s`, the `m = num_sampled[r]` tokens are appended to
    `all_token_ids[s]` at `total_len[s]`, which grows by `m`, and are counted in
    `output_bin_counts[s]`. If there are any, the last one is stored in `last_sampled_tokens[s]`.
    `num_computed_tokens[s]` grows by the row's tokens,
    `query_start_loc[r + 1] - query_start_loc[r]`, without the `num_rejected[r]` rejected ones. The
    row's new draft tokens replace `draft_tokens_out[s]`.

    Nothing is read or written for a dummy row, nor for request slots that are not in the batch;
    rows and starts past the batch are not read. What is changed must be contiguous and share no
    memory with another argument.

    Args:
        idx_mapping: int32 or int64[num_reqs], the request slot of each row, -1 for a dummy. Two
            rows never have one slot.
        num_computed_tokens: int32[max_num_reqs], by request slot; changed.
        last_sampled_tokens: int32 or int64[max_num_reqs] or [max_num_reqs, 1], by request slot;
            changed.
        output_bin_counts: int32[max_num_reqs, vocab_size], how often each token was sampled for a
            request, modulo 2**32; changed. None: not counted.
        sampled_tokens: int32 or int64[at least num_reqs, max_num_sampled], the tokens of each row;
            those past its `num_sampled` are not read.
        num_sampled: int32[at least num_reqs].
        num_rejected: int32[at least num_reqs].
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start; begins at 0
            and does not decrease. None: no row has tokens, as they were counted before
            (`post_update_num_computed_tokens`).
        all_token_ids: int32[max_num_reqs, max_model_len], the tokens of each request; changed.
        total_len: int32[max_num_reqs], how many these are; changed.
        draft_tokens: int32 or int64[at least num_reqs, num_drafts], the draft tokens for the next
            step, any numbers. None: there are none.
        draft_tokens_out: [max_num_reqs, num_drafts] of the same dtype, by request slot; changed.
            Given if `draft_tokens` is.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: A wrong shape; starts that do not begin at 0, or decrease; a request slot that
            two rows have; fewer than 0 sampled tokens, or more than `max_num_sampled` or than
            `all_token_ids` has room for; a sampled token below 0, past `vocab_size` or past int32;
            fewer than 0 rejected tokens; a number of computed tokens that would be negative or past
            int32; draft tokens without their state, or the reverse; a state that is not contiguous,
            is read-only or shares memory with another argument. Nothing is written.

    Example:
        >>> import numpy as np
        >>> num_computed_tokens, total_len = np.array([[7, 3], [8, 4]], np.int32)
        >>> last_sampled_tokens = np.array([11, 12], np.int32)
        >>> all_token_ids = np.zeros((2, 12), np.int32)
        >>> post_update(  # two drafts were computed: the first was accepted, the second rejected
        ...     np.array([0, -1]),
        ...     num_computed_tokens,
        ...     last_sampled_tokens,
        ...     None,
        ...     np.array([[21, 22, -1], [-1, -1, -1]]),
        ...     np.array([2, 0], np.int32),
        ...     np.array([1, 0], np.int32),
        ...     np.array([0, 3, 3], np.int32),
        ...     all_token_ids,
        ...     total_len,
        ... )
        >>> num_computed_tokens.tolist(), total_len.tolist(), last_sampled_tokens.tolist()
        ([9, 3], [10, 4], [22, 12])
        >>> all_token_ids[0, 8:].tolist()
        [21, 22, 0, 0]

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    max_num_reqs = len(check_array("num_computed_tokens", num_computed_tokens, np.int32, 1))
    check_column("last_sampled_tokens", last_sampled_tokens, COUNT_DTYPES, max_num_reqs)
    vocab_size = MAX_INT32 + 1
    if output_bin_counts is not None:
        check_states("output_bin_counts", output_bin_counts, np.int32, 2, max_num_reqs)
        vocab_size = output_bin_counts.shape[1]
    check_states("all_token_ids", all_token_ids, np.int32, 2, max_num_reqs)
    check_states("total_len", total_len, np.int32, 1, max_num_reqs)
    slots = check_request_slots(idx_mapping, max_num_reqs)
    num_reqs = len(slots)
    check_array("sampled_tokens", sampled_tokens, COUNT_DTYPES, 2, num_reqs)
    check_array("num_sampled", num_sampled, np.int32, 1, num_reqs)
    check_array("num_rejected", num_rejected, np.int32, 1, num_reqs)
    starts = [0] * (num_reqs + 1)
    if query_start_loc is not None:
        starts = check_row_starts("query_start_loc", query_start_loc, num_reqs)
    _check_drafts(draft_tokens, draft_tokens_out, num_reqs, max_num_reqs)
    written = {
        "num_computed_tokens": num_computed_tokens,
        "last_sampled_tokens": last_sampled_tokens,
        "output_bin_counts": output_bin_counts,
        "all_token_ids": all_token_ids,
        "total_len": total_len,
        "draft_tokens_out": draft_tokens_out,
    }
    read = (idx_mapping, sampled_tokens, num_sampled, num_rejected, query_start_loc, draft_tokens)
    check_written(
        {name: array for name, array in written.items() if array is not None},
        [array for array in read if array is not None],
    )
    requests = [(row, slot) for row, slot in enumerate(slots) if slot != DUMMY_ROW]
    tokens = _read_sampled(sampled_tokens, num_sampled, slots, vocab_size)
    for row, slot in requests:
        _check_room(slot, int(total_len[slot]), len(tokens[row]), all_token_ids.shape[1])
    growth = [starts[row + 1] - starts[row] for row in range(num_reqs)]
    for row, _ in requests:
        growth[row] -= check_int(f"num_rejected[{row}]", num_rejected[row], 0, MAX_INT32)
    for row, slot in requests:
        _check_computed(slot, int(num_computed_tokens[slot]), growth[row])

    for row, slot in requests:
        for token in tokens[row]:
            all_token_ids[slot, total_len[slot]] = token
            total_len[slot] += 1
            last_sampled_tokens[slot] = token
            if output_bin_counts is not None:
                np.add.at(output_bin_counts, (slot, token), 1)  # it wraps without a warning
        num_computed_tokens[slot] += growth[row]
        if draft_tokens is not None and draft_tokens_out is not None:
            draft_tokens_out[slot] = draft_tokens[row]


def _check_drafts(
    draft_tokens: object, draft_tokens_out: object, num_reqs: int, max_num_reqs: int
) -> None:
    """Check that draft tokens and their state are given both or not at all, and fit."""
    if draft_tokens is None or draft_tokens_out is None:
        if draft_tokens is not draft_tokens_out:
            missing = "draft_tokens" if draft_tokens is None else "draft_tokens_out"
            raise ValueError(
                f"{missing} is None, expected draft tokens and their state, or neither"
            )
        return
    drafts = check_array("draft_tokens", draft_tokens, COUNT_DTYPES, 2, num_reqs)
    state = check_states("draft_tokens_out", draft_tokens_out, drafts.dtype.type, 2, max_num_reqs)
    check_length("draft_tokens_out", state.shape[1], drafts.shape[1], "num_drafts = ")


def _read_sampled(
    sampled_tokens: IntArray, num_sampled: Int32Array, slots: list[int], vocab_size: int
) -> list[list[int]]:
    """Return the tokens that were sampled for each row; none for a dummy row."""
    tokens: list[list[int]] = [[] for _ in slots]
    for row, slot in enumerate(slots):
        if slot != DUMMY_ROW:
            number = check_int(f"num_sampled[{row}]", num_sampled[row], 0, sampled_tokens.shape[1])
            tokens[row] = sampled_tokens[row, :number].tolist()
    for row, sampled in enumerate(tokens):
        for at, token in enumerate(sampled):
            check_int(f"sampled_tokens[{row}, {at}]", token, 0, vocab_size - 1)
    return tokens


def _check_room(slot: int, length: int, num_new: int, max_model_len: int) -> None:
    if not 0 <= length <= max_model_len - num_new:
        raise ValueError(
            f"total_len[{slot}] is {length}, expected 0 to {max_model_len - num_new}, as {num_new} "
            f"of {max_model_len} tokens are new"
        )


def _check_computed(slot: int, computed: int, growth: int) -> None:
    least, most = max(-growth, 0), MAX_INT32 - max(growth, 0)
    if not least <= computed <= most:
        raise ValueError(
            f"num_computed_tokens[{slot}] is {computed}, expected {least} to {most}, as it changes "
            f"by {growth}"
        )


def post_update_num_computed_tokens(
    idx_mapping: IntArray, num_computed_tokens: Int32Array, query_start_loc: Int32Array
) -> None:
    """Count the tokens of a step as computed, before it is known which are rejected.

    `num_computed_tokens[idx_mapping[r]]` grows by `query_start_loc[r + 1] - query_start_loc[r]`.
    `post_update` without `query_start_loc` then subtracts the rejected ones. Dummy rows have no
    effect.

    Args:
        idx_mapping: int32 or int64[num_reqs], the request slot of each row, -1 for a dummy. Two
            rows never have one slot.
        num_computed_tokens: int32[max_num_reqs], by request slot; changed in place. Contiguous.
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start; begins at 0
            and does not decrease. Later entries are not read.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: A wrong length or number of dimensions; starts that do not begin at 0, or
            decrease; a request slot that two rows have; a number of computed tokens that would be
            negative or past int32; a `num_computed_tokens` that is not contiguous, is read-only or
            shares memory with another argument. Nothing is written.

    Example:
        >>> import numpy as np
        >>> num_computed_tokens = np.array([7, 3, 0], np.int32)
        >>> query_start_loc = np.array([0, 1, 6], np.int32)
        >>> post_update_num_computed_tokens(np.array([1, 2]), num_computed_tokens, query_start_loc)
        >>> num_computed_tokens.tolist()
        [7, 4, 5]

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    check_array("num_computed_tokens", num_computed_tokens, np.int32, 1)
    slots = check_request_slots(idx_mapping, len(num_computed_tokens))
    starts = check_row_starts("query_start_loc", query_start_loc, len(slots))
    check_written({"num_computed_tokens": num_computed_tokens}, [idx_mapping, query_start_loc])
    for row, slot in enumerate(slots):
        if slot != DUMMY_ROW:
            _check_computed(slot, int(num_computed_tokens[slot]), starts[row + 1] - starts[row])

    for row, slot in enumerate(slots):
        if slot != DUMMY_ROW:
            num_computed_tokens[slot] += starts[row + 1] - starts[row]
