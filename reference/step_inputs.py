"""The inputs of a step: positions, lengths, token IDs and logits, from the state of requests.

State lies in *request slots*, `0 .. max_num_reqs - 1`. A step's *rows* are the requests of its
batch: `idx_mapping[row]` is a row's request slot, or -1 for a dummy row. Two rows never have one
slot.
"""

from __future__ import annotations

import numpy as np

from reference._checks import (
    COUNT_DTYPES,
    DUMMY_ROW,
    MAX_INT32,
    Array,
    Int32Array,
    Int64Array,
    IntArray,
    check_array,
    check_column,
    check_int,
    check_not_negative,
    check_request_slots,
    check_row_starts,
    check_size,
    check_states,
    check_written,
)


def prepare_pos_seq_lens(
    idx_mapping: IntArray,
    query_start_loc: Int32Array,
    num_computed_tokens: Int32Array,
    pos: Int64Array,
    seq_lens: Int32Array,
) -> None:
    """Write the position of each token and the length of each sequence.

    The new tokens of a row follow the computed tokens of its request slot, `n`: they have the
    positions `n`, `n + 1`, ..., and the length is `n` plus their number. A dummy row has computed
    nothing.

    Args:
        idx_mapping: int32 or int64[num_reqs], the request slot of each row; -1: a dummy row.
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start; later entries
            are not read.
        num_computed_tokens: int32[max_num_reqs], by request slot; others are not read.
        pos: int64[at least query_start_loc[num_reqs]], written; entries past the last token stay.
        seq_lens: int32[at least num_reqs], written; entries past `num_reqs` become 0. Both are
            contiguous and share no memory with another argument.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: A request slot that two rows have, starts that do not begin at 0 or that
            decrease, too few entries to write, a negative number of computed tokens, a length above
            2**31 - 1; an array to write that is not contiguous, is read-only or shares memory.
            Nothing is written.

    Example:
        >>> import numpy as np
        >>> pos, seq_lens = np.full(7, 77), np.full(4, 77, np.int32)
        >>> prepare_pos_seq_lens(
        ...     idx_mapping=np.array([2, -1, 0], np.int32),
        ...     query_start_loc=np.array([0, 3, 4, 6], np.int32),
        ...     num_computed_tokens=np.array([5, 0, 9], np.int32),
        ...     pos=pos,
        ...     seq_lens=seq_lens,
        ... )
        >>> pos.tolist(), seq_lens.tolist()
        ([9, 10, 11, 0, 5, 6, 77], [12, 1, 7, 0])

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    num_slots = len(check_array("num_computed_tokens", num_computed_tokens, np.int32, 1))
    check_array("pos", pos, np.int64, 1)
    slots = check_request_slots(idx_mapping, num_slots)
    starts = check_row_starts("query_start_loc", query_start_loc, len(slots))
    check_array("seq_lens", seq_lens, np.int32, 1, len(slots))
    _check_tokens("pos", pos, starts)
    computed = _read_computed(num_computed_tokens, slots)
    for row, slot in enumerate(slots):
        num_new = starts[row + 1] - starts[row]
        if computed[row] + num_new > MAX_INT32:
            raise ValueError(
                f"num_computed_tokens[{slot}] is {computed[row]}, with {num_new} new tokens more "
                f"than {MAX_INT32}"
            )
    check_written(
        {"pos": pos, "seq_lens": seq_lens}, [idx_mapping, query_start_loc, num_computed_tokens]
    )

    for row in range(len(slots)):
        num_new = starts[row + 1] - starts[row]
        for j in range(num_new):
            pos[starts[row] + j] = computed[row] + j
        seq_lens[row] = computed[row] + num_new
    seq_lens[len(slots) :] = 0


def prepare_prefill_inputs(
    input_ids: Int32Array,
    next_prefill_tokens: Int32Array,
    idx_mapping: IntArray,
    query_start_loc: Int32Array,
    all_token_ids: Int32Array,
    prefill_len: Int32Array,
    num_computed_tokens: Int32Array,
) -> None:
    """Write the token IDs of the rows that are prefilling, and the tokens after them.

    A row is *prefilling* if its request slot `s` has computed fewer tokens than are known before
    anything is sampled: `num_computed_tokens[s] < prefill_len[s]`. For other rows, and for dummy
    rows, nothing is written.

    Args:
        input_ids: int32[at least query_start_loc[num_reqs]], written: a prefilling row's new tokens
            are those of its slot from the first that is not computed on.
        next_prefill_tokens: int32[num_lookahead, max_num_reqs], written: for a prefilling row, the
            tokens of its slot that follow the new ones; 0 from `prefill_len[s]` on. Both are
            contiguous and share no memory with another argument.
        idx_mapping: int32 or int64[num_reqs], the request slot of each row; -1: a dummy row.
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start; later entries
            are not read.
        all_token_ids: int32[max_num_reqs, max_model_len], by request slot.
        prefill_len: int32[max_num_reqs], by request slot, at most `max_model_len`.
        num_computed_tokens: int32[max_num_reqs], by request slot. Of both, slots that no row has
            are not read.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: Arrays of different `max_num_reqs`, a request slot that two rows have, starts
            that do not begin at 0 or that decrease, more tokens than `input_ids`, a negative count,
            a prefill length or tokens of a prefilling row past `max_model_len`; an array to write
            that is not contiguous, is read-only or shares memory. Nothing is written.

    Example:
        >>> import numpy as np
        >>> input_ids, following = np.full(5, 77, np.int32), np.full((2, 2), 77, np.int32)
        >>> prepare_prefill_inputs(
        ...     input_ids,
        ...     following,
        ...     idx_mapping=np.array([1, 0], np.int32),
        ...     query_start_loc=np.array([0, 2, 3], np.int32),
        ...     all_token_ids=np.array([[5, 6, 0, 0], [10, 11, 12, 13]], np.int32),
        ...     prefill_len=np.array([2, 4], np.int32),
        ...     num_computed_tokens=np.array([2, 1], np.int32),
        ... )
        >>> input_ids.tolist(), following.tolist()
        ([11, 12, 77, 77, 77], [[77, 13], [77, 0]])

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    check_array("input_ids", input_ids, np.int32, 1)
    check_array("next_prefill_tokens", next_prefill_tokens, np.int32, 2)
    num_slots, width = check_array("all_token_ids", all_token_ids, np.int32, 2).shape
    check_states("prefill_len", prefill_len, np.int32, 1, num_slots)
    check_states("num_computed_tokens", num_computed_tokens, np.int32, 1, num_slots)
    if next_prefill_tokens.shape[1] != num_slots:
        raise ValueError(
            f"next_prefill_tokens has {next_prefill_tokens.shape[1]} columns, expected "
            f"max_num_reqs = {num_slots}"
        )
    slots = check_request_slots(idx_mapping, num_slots)
    starts = check_row_starts("query_start_loc", query_start_loc, len(slots))
    _check_tokens("input_ids", input_ids, starts)
    computed = _read_computed(num_computed_tokens, slots)
    for slot in _of_requests(slots):
        check_int(f"prefill_len[{slot}]", prefill_len[slot], 0, width)
    prefilling = [
        row
        for row, slot in enumerate(slots)
        if slot != DUMMY_ROW and computed[row] < prefill_len[slot]
    ]
    for row in prefilling:
        num_new = starts[row + 1] - starts[row]
        if computed[row] + num_new > width:
            raise ValueError(
                f"num_computed_tokens[{slots[row]}] is {computed[row]}, with {num_new} new tokens "
                f"more than the {width} columns of all_token_ids"
            )
    check_written(
        {"input_ids": input_ids, "next_prefill_tokens": next_prefill_tokens},
        [idx_mapping, query_start_loc, all_token_ids, prefill_len, num_computed_tokens],
    )

    for row in prefilling:
        tokens = all_token_ids[slots[row]]
        end = computed[row] + starts[row + 1] - starts[row]
        input_ids[starts[row] : starts[row + 1]] = tokens[computed[row] : end]
        for k in range(len(next_prefill_tokens)):
            is_known = end + k < prefill_len[slots[row]]
            next_prefill_tokens[k, slots[row]] = tokens[end + k] if is_known else 0


def combine_sampled_and_draft_tokens(
    input_ids: Int32Array,
    idx_mapping: IntArray,
    last_sampled_tokens: IntArray,
    query_start_loc: Int32Array,
    seq_lens: Int32Array,
    prefill_len: Int32Array,
    draft_tokens: IntArray,
    cu_num_logits: Int32Array,
    num_logits: int,
    num_new_sampled_tokens: int = 1,
) -> Int64Array:
    """Write the sampled and draft tokens of a step, and list the tokens that have logits.

    The last `L` tokens of a row have logits, `L = cu_num_logits[row + 1] - cu_num_logits[row]`. If
    the row ends past what is known of its request slot `s`, `seq_lens[row] > prefill_len[s]`, they
    are the last sampled token, unless `num_new_sampled_tokens` is 0, and draft tokens. The sampled
    token is not written where a known one is: at a position below `prefill_len[s]`. A row with
    `L = 0` gets nothing.

    Args:
        input_ids: int32[at least query_start_loc[num_reqs]], written; contiguous, and shares no
            memory with another argument.
        idx_mapping: int32 or int64[num_reqs], the request slot of each row; -1: a dummy row, for
            which no tokens are written.
        last_sampled_tokens: int32 or int64[max_num_reqs] or [max_num_reqs, 1], by request slot.
        query_start_loc: int32[at least num_reqs + 1], where each row's tokens start.
        seq_lens: int32[at least num_reqs], each row's sequence length.
        prefill_len: int32[max_num_reqs], by request slot, the tokens known before sampling.
        draft_tokens: int32 or int64[max_num_reqs, max_draft_tokens], by request slot.
        cu_num_logits: int32[at least num_reqs + 1], where each row's logits start. Of this,
            `query_start_loc` and `seq_lens`, later entries are not read.
        num_logits: `cu_num_logits[num_reqs]`, given so that nothing waits for the device.
        num_new_sampled_tokens: How many of a row's logits are of a sampled token, 0 or 1.

    Returns:
        A new int64[num_logits], the index in `input_ids` of each token with logits, row by row;
        also of dummy rows.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot that does not exist.
        ValueError: Arrays of different `max_num_reqs`, a request slot that two rows have, starts
            that do not begin at 0 or that decrease, another `num_logits`, more tokens than
            `input_ids`, more logits than tokens in a row, negative lengths, more drafts than
            `draft_tokens` has columns or than the row has tokens past `prefill_len`, a token to
            write that is no int32; an `input_ids` that is not contiguous, is read-only or shares
            memory. Nothing is written.

    Example:
        >>> import numpy as np
        >>> input_ids = np.full(6, 77, np.int32)
        >>> combine_sampled_and_draft_tokens(
        ...     input_ids,
        ...     idx_mapping=np.array([1, 0], np.int32),
        ...     last_sampled_tokens=np.array([40, 50]),
        ...     query_start_loc=np.array([0, 3, 5], np.int32),
        ...     seq_lens=np.array([9, 2], np.int32),
        ...     prefill_len=np.array([4, 4], np.int32),
        ...     draft_tokens=np.array([[41, 42], [51, 52]]),
        ...     cu_num_logits=np.array([0, 3, 4], np.int32),
        ...     num_logits=4,
        ... ).tolist()
        [0, 1, 2, 4]
        >>> input_ids.tolist()
        [50, 51, 52, 77, 77, 77]

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    check_array("input_ids", input_ids, np.int32, 1)
    num_slots = len(check_array("prefill_len", prefill_len, np.int32, 1))
    sampled = check_column("last_sampled_tokens", last_sampled_tokens, COUNT_DTYPES, num_slots)
    check_states("draft_tokens", draft_tokens, COUNT_DTYPES, 2, num_slots)
    num_new_sampled = check_int("num_new_sampled_tokens", num_new_sampled_tokens, 0, 1)
    slots = check_request_slots(idx_mapping, num_slots)
    starts = check_row_starts("query_start_loc", query_start_loc, len(slots))
    lens: list[int] = check_array("seq_lens", seq_lens, np.int32, 1, len(slots)).tolist()
    logits = _read_logits(cu_num_logits, len(slots), "num_logits", num_logits)
    _check_tokens("input_ids", input_ids, starts)
    check_not_negative("seq_lens", lens[: len(slots)])
    for slot in _of_requests(slots):
        check_int(f"prefill_len[{slot}]", prefill_len[slot], 0, MAX_INT32)
    _check_logits(logits, starts)

    written: list[tuple[int, int]] = []  # where, and which token
    for row in _past_what_is_known(slots, lens, prefill_len):
        num_row_logits = logits[row + 1] - logits[row]
        num_drafts = max(num_row_logits - num_new_sampled, 0)
        past = lens[row] - int(prefill_len[slots[row]])
        room = min(draft_tokens.shape[1], past)
        if num_drafts > room:
            raise ValueError(
                f"cu_num_logits[{row + 1}] is {logits[row + 1]}: row {row} has {num_drafts} draft "
                f"tokens, expected at most {room}"
            )
        tokens: list[int] = draft_tokens[slots[row], :num_drafts].tolist()
        if num_new_sampled == 1 and 0 < num_row_logits <= past:
            tokens.insert(0, int(sampled[slots[row]].item()))
        written.extend(enumerate(tokens, starts[row + 1] - len(tokens)))
    for at, token in written:
        check_int(f"the token for input_ids[{at}]", token, -MAX_INT32 - 1, MAX_INT32)
    read = [idx_mapping, sampled, query_start_loc, seq_lens, prefill_len, draft_tokens]
    check_written({"input_ids": input_ids}, [*read, cu_num_logits])

    for at, token in written:
        input_ids[at] = token
    indices: list[int] = []
    for row in range(len(slots)):
        end = starts[row + 1]
        indices.extend(range(end - (logits[row + 1] - logits[row]), end))
    return np.array(indices, np.int64)


def expand_idx_mapping(
    idx_mapping: IntArray, total_num_logits: int, cu_num_logits: Int32Array, max_expand_len: int
) -> tuple[IntArray, Int32Array]:
    """Return the request slot of each logit, and its number within its row.

    Args:
        idx_mapping: int32 or int64[num_reqs], the request slot of each row, below 2**31; -1: a
            dummy row.
        total_num_logits: `cu_num_logits[num_reqs]`, given so that nothing waits for the device.
        cu_num_logits: int32[at least num_reqs + 1], where each row's logits start; later entries
            are not read.
        max_expand_len: The most logits that a row may have.

    Returns:
        The request slots, [total_num_logits] of the dtype of `idx_mapping`, and the numbers,
        int32[total_num_logits], from 0 in each row; both are new.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        IndexError: A request slot below -1, or of 2**31 or more.
        ValueError: A request slot that two rows have, starts that do not begin at 0 or that
            decrease, another `total_num_logits`, more than `max_expand_len` logits in a row.

    Example:
        >>> import numpy as np
        >>> slots, numbers = expand_idx_mapping(
        ...     np.array([2, -1, 0], np.int32), 6, np.array([0, 3, 4, 6], np.int32), 4
        ... )
        >>> slots.tolist(), numbers.tolist()
        ([2, 2, 2, -1, 0, 0], [0, 1, 2, 0, 0, 1])

    Source: the definition is kvtwin's own; the name is that of vLLM's second runner.
    """
    slots = check_request_slots(idx_mapping, MAX_INT32 + 1)
    most = check_size("max_expand_len", max_expand_len)
    logits = _read_logits(cu_num_logits, len(slots), "total_num_logits", total_num_logits)
    owners: list[int] = []
    numbers: list[int] = []
    for row, slot in enumerate(slots):
        num_row_logits = logits[row + 1] - logits[row]
        if num_row_logits > most:
            raise ValueError(
                f"cu_num_logits[{row + 1}] is {logits[row + 1]}, {num_row_logits} more than before "
                f"it, expected at most max_expand_len = {most}"
            )
        owners.extend([slot] * num_row_logits)
        numbers.extend(range(num_row_logits))
    return np.array(owners, idx_mapping.dtype), np.array(numbers, np.int32)


def _read_logits(cu_num_logits: object, num_reqs: int, name: str, number: object) -> list[int]:
    """Return where the logits of each row start; their number is given too, by `name`."""
    total = check_int(name, number, 0, MAX_INT32)
    logits = check_row_starts("cu_num_logits", cu_num_logits, num_reqs)
    if logits[-1] != total:
        raise ValueError(f"cu_num_logits[{num_reqs}] is {logits[-1]}, but {name} is {total}")
    return logits


def _check_logits(logits: list[int], starts: list[int]) -> None:
    for row in range(len(logits) - 1):
        num_logits, num_tokens = logits[row + 1] - logits[row], starts[row + 1] - starts[row]
        if num_logits > num_tokens:
            raise ValueError(
                f"cu_num_logits[{row + 1}] is {logits[row + 1]}, {num_logits} more than before it, "
                f"but row {row} has {num_tokens} tokens"
            )


def _read_computed(num_computed_tokens: Int32Array, slots: list[int]) -> list[int]:
    """Return how many tokens each row has computed; 0 for a dummy row."""
    for slot in _of_requests(slots):
        check_int(f"num_computed_tokens[{slot}]", num_computed_tokens[slot], 0, MAX_INT32)
    return [int(num_computed_tokens[slot]) if slot != DUMMY_ROW else 0 for slot in slots]


def _of_requests(slots: list[int]) -> list[int]:
    return [slot for slot in slots if slot != DUMMY_ROW]


def _past_what_is_known(slots: list[int], lens: list[int], prefill_len: Int32Array) -> list[int]:
    """Return the rows whose sequences end past what is known of their request slots."""
    return [
        row for row, slot in enumerate(slots) if slot != DUMMY_ROW and lens[row] > prefill_len[slot]
    ]


def _check_tokens(name: str, array: Array, starts: list[int]) -> None:
    if starts[-1] > len(array):
        raise ValueError(
            f"query_start_loc[{len(starts) - 1}] is {starts[-1]}, but {name} has {len(array)} "
            "entries"
        )
