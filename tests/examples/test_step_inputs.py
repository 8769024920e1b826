"""The inputs of a step: positions, lengths, token IDs, and the tokens with logits."""

from __future__ import annotations

import pytest

from tests.examples.twins import Twin, shares_memory

MOST = 2**31 - 1

# Three request slots: slot 0 knows two tokens, slot 1 four, slot 2 none.
TOKENS = [[5, 6, 0, 0], [10, 11, 12, 13], [0, 0, 0, 0]]
KNOWN = [2, 4, 0]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("slots", "starts", "computed", "positions", "lens"),
    [
        # row 0 is slot 2, which has computed 9 tokens: its 3 new ones have the positions 9 to 11
        ([2, 0, 1], [0, 3, 4, 6], [5, 0, 9], [9, 10, 11, 5, 0, 1, 77], [12, 6, 2, 0, 0]),
        ([-1, 1], [0, 2, 3], [5, 8], [0, 1, 8, 77, 77, 77, 77], [2, 9, 0, 0, 0]),  # a dummy row
        ([0, -1], [0, 0, 0], [5], [77] * 7, [5, 0, 0, 0, 0]),  # rows without tokens
        ([], [0], [5], [77] * 7, [0] * 5),
        ([0], [0, 1, -9, 50], [5], [5, *[77] * 6], [6, 0, 0, 0, 0]),  # later starts are not read
        ([1], [0, 2], [-7, MOST - 2], [MOST - 2, MOST - 1, *[77] * 5], [MOST, 0, 0, 0, 0]),
    ],
)
def test_positions_and_lengths(twin: Twin, dtype, slots, starts, computed, positions, lens) -> None:
    pos, seq_lens = twin.array([77] * 7, "int64"), twin.array([77] * 5)
    given = twin.array(slots, dtype), twin.array(starts), twin.array(computed)
    assert twin.prepare_pos_seq_lens(*given, pos, seq_lens) is None
    assert (positions, lens) == (pos.tolist(), seq_lens.tolist())


@pytest.mark.parametrize(
    ("slots", "starts", "computed", "ids", "following"),
    [
        # slot 1 computes its tokens 1 and 2: token 3 follows, then it knows no more
        ([1], [0, 2], [0, 1, 0], [11, 12, 77, 77], [[77, 13, 77], [77, 0, 77]]),
        ([1, 0], [0, 1, 3], [0, 3, 0], [13, 5, 6, 77], [[0, 0, 77], [0, 0, 77]]),  # last chunks
        ([0, 1], [0, 1, 2], [0, 0, 0], [5, 10, 77, 77], [[6, 11, 77], [0, 12, 77]]),
        ([0, 1], [0, 1, 2], [2, 2, 0], [77, 12, 77, 77], [[77, 13, 77], [77, 0, 77]]),  # a decode
        ([-1, 0], [0, 2, 3], [1, 0, 0], [77, 77, 6, 77], [[0, 77, 77], [0, 77, 77]]),  # a dummy row
        ([2], [0, 3], [0, 0, 9], [77] * 4, [[77] * 3] * 2),  # past what is known
        ([1], [0, 0], [0, 2, 0], [77] * 4, [[77, 12, 77], [77, 13, 77]]),  # no new tokens
        ([0], [0, 3], [1, 0, 0], [6, 0, 0, 77], [[0, 77, 77]] * 2),  # more than is known
    ],
)
def test_prefill_inputs(twin: Twin, slots, starts, computed, ids, following) -> None:
    input_ids, ahead = twin.array([77] * 4), twin.array([[77] * 3] * 2)
    rows = twin.array(slots, "int64"), twin.array(starts)
    states = twin.array(TOKENS), twin.array(KNOWN), twin.array(computed)
    assert twin.prepare_prefill_inputs(input_ids, ahead, *rows, *states) is None
    assert (ids, following) == (input_ids.tolist(), ahead.tolist())


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize(
    ("slots", "lens", "cumulated", "new", "ids", "indices"),
    [
        # Two rows of 3 tokens. Row 0 is slot 1, past its 4 known tokens, with 2 drafts: its
        # tokens are the last sampled one and the drafts; row 1 is a chunk of slot 0's prompt.
        ([1, 0], [9, 3], [0, 3, 4], 1, [50, 51, 52, 77, 77, 77], [0, 1, 2, 5]),
        ([1, 0], [9, 3], [0, 1, 2], 1, [77, 77, 50, 77, 77, 77], [2, 5]),  # no drafts
        ([0, 1], [6, 7], [0, 2, 5], 1, [77, 40, 41, 50, 51, 52], [1, 2, 3, 4, 5]),
        ([0, 1], [5, 6], [0, 2, 5], 1, [77, 77, 41, 77, 51, 52], [1, 2, 3, 4, 5]),  # prompts stay
        ([0, 1], [6, 4], [0, 2, 3], 1, [77, 40, 41, 77, 77, 77], [1, 2, 5]),  # 4 of 4 are known
        ([0, 1], [6, 5], [0, 2, 4], 1, [77, 40, 41, 77, 77, 51], [1, 2, 4, 5]),  # the last is not
        ([0, 1], [9, 9], [0, 2, 4], 0, [77, 41, 42, 77, 51, 52], [1, 2, 4, 5]),  # drafts only
        ([-1, 1], [9, 9], [0, 2, 3], 1, [77, 77, 77, 77, 77, 50], [1, 2, 5]),  # a dummy row
        ([0, 1], [9, 9], [0, 0, 1], 1, [77, 77, 77, 77, 77, 50], [5]),  # no logits
        ([1, 0], [9, 9], [0, 0, 0], 0, [77] * 6, []),
    ],
)
def test_sampled_and_draft_tokens(
    twin: Twin, shape, slots, lens, cumulated, new, ids, indices
) -> None:
    input_ids = twin.array([77] * 6)
    found = twin.combine_sampled_and_draft_tokens(
        input_ids,
        twin.array(slots),
        twin.array([40, 50], "int64").reshape(shape),
        twin.array([0, 3, 6]),
        twin.array(lens),
        twin.array([4, 4]),
        twin.array([[41, 42], [51, 52]], "int64"),
        twin.array(cumulated),
        cumulated[-1],
        *([] if new == 1 else [new]),
    )
    assert (ids, indices) == (input_ids.tolist(), found.tolist())
    assert twin.dtype("int64") == found.dtype


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("slots", "cumulated", "expected", "numbers"),
    [
        ([2, -1, 0], [0, 3, 4, 6], [2, 2, 2, -1, 0, 0], [0, 1, 2, 0, 0, 1]),
        ([7, 5], [0, 0, 2], [5, 5], [0, 1]),
        ([MOST], [0, 1], [MOST], [0]),
        ([4], [0, 0], [], []),
        ([], [0], [], []),
    ],
)
def test_slots_of_logits(twin: Twin, dtype, slots, cumulated, expected, numbers) -> None:
    rows = twin.array(slots, dtype)
    found, within = twin.expand_idx_mapping(rows, cumulated[-1], twin.array(cumulated), 3)
    assert (expected, rows.dtype) == (found.tolist(), found.dtype)
    assert (numbers, twin.dtype("int32")) == (within.tolist(), within.dtype)


@pytest.mark.parametrize(
    ("number", "rank", "padded", "expected", "buffer"),
    [
        # 5 tokens over 2 ranks, 2 tokens at a time: rank 0 has 0, 1, 4, rank 1 has 2, 3
        (2, 0, None, [3, 4, 0, 0], [3, 4, 0, 0]),
        (2, 1, 3, [2, 4, 0], [2, 4, 0, 0]),
        (2, 1, 2, [2, 4], [2, 4, 0, 0]),
        (3, 0, 3, [3, 4, 5], [3, 4, 5, 0]),
        (0, 0, 1, [0], [0, 0, 0, 0]),
    ],
)
def test_lengths_on_a_rank(twin: Twin, number, rank, padded, expected, buffer) -> None:
    local, lens = twin.array([77] * 4), twin.array([5, 8, 9])
    found = twin.prepare_dcp_local_seq_lens(local, lens, number, 2, rank, 2, num_reqs_padded=padded)
    assert (expected, buffer) == (found.tolist(), local.tolist())
    assert shares_memory(found, local)
