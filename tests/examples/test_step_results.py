"""Results of a step: what is sampled and rejected, and the state of requests after it."""

from __future__ import annotations

import pytest

from tests.examples.twins import Twin

PREFILL_LEN = [6, 5, 9]


@pytest.mark.parametrize(
    ("sampled", "lens", "logits", "slots", "expected"),
    [
        # slots 2, 0, 1 have prompts of 9, 6, 5 tokens: lengths of 9, 4, 8 end at, in, past them
        pytest.param([1, 1, 2], [9, 4, 8], [0, 1, 2, 6], [2, 0, 1], ([1, 0, 2], [0, 0, 2]), id="a"),
        pytest.param([1], [5], [0, 1], [0], ([0], [0]), id="one token short"),
        pytest.param([1], [6], [0, 1], [0], ([1], [0]), id="the whole prompt"),
        pytest.param([0], [6], [0, 3], [0], ([0], [3]), id="all are rejected"),
        pytest.param([9, 4], [2, 7], [0, 1, 5], [0, 1], ([0, 4], [0, 0]), id="a number unread"),
        pytest.param([7, 1], [0, 7], [0, 3, 5], [-1, 1], ([7, 1], [0, 1]), id="a dummy"),
        pytest.param([], [3, 4], [0], [], ([], []), id="no rows"),
    ],
)
def test_get_num_sampled_and_rejected(twin: Twin, sampled, lens, logits, slots, expected) -> None:
    given = twin.array(sampled)
    found = twin.get_num_sampled_and_rejected(
        given, twin.array(lens), twin.array(logits), twin.array(slots), twin.array(PREFILL_LEN)
    )
    assert found[0] is given
    assert expected == (found[0].tolist(), found[1].tolist())


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_post_update(twin: Twin, dtype) -> None:
    computed, lens = twin.array([7, 3, 4]), twin.array([8, 4, 5])
    ids, counts = twin.array([[0] * 10] * 3), twin.array([[1] * 6] * 3)
    state = twin.array([[-1, -1]] * 3, dtype)
    last = twin.array([11, 12, 13], dtype)
    twin.post_update(
        idx_mapping=twin.array([2, -1, 0, 1], dtype),
        num_computed_tokens=computed,
        last_sampled_tokens=last,
        output_bin_counts=counts,
        sampled_tokens=twin.array([[5, 5, 3], [4, 4, 4], [2, -1, -1], [-1, -1, -1]], dtype),
        num_sampled=twin.array([3, 9, 1, 0]),
        num_rejected=twin.array([0, 9, 2, 0]),
        query_start_loc=twin.array([0, 3, 4, 7, 12]),
        all_token_ids=ids,
        total_len=lens,
        draft_tokens=twin.array([[21, 22], [23, 24], [25, 26], [27, 28]], dtype),
        draft_tokens_out=state,
    )
    assert [8, 8, 7] == computed.tolist()  # 7 + 3 - 2, 3 + 5, 4 + 3
    assert [2, 12, 3] == last.tolist()
    assert [9, 4, 8] == lens.tolist()
    assert [[0] * 8 + [2, 0], [0] * 10, [0] * 5 + [5, 5, 3, 0, 0]] == ids.tolist()
    assert [[1, 1, 2, 1, 1, 1], [1] * 6, [1, 1, 1, 2, 1, 3]] == counts.tolist()
    assert [[25, 26], [27, 28], [21, 22]] == state.tolist()


def test_rejected_tokens_are_subtracted_later(twin: Twin) -> None:
    computed, rows = twin.array([7, 3, 4]), twin.array([2, -1, 0])
    twin.post_update_num_computed_tokens(rows, computed, twin.array([0, 3, 8, 9]))
    assert [8, 3, 7] == computed.tolist()
    last, ids, lens = twin.array([[11], [12], [13]]), twin.array([[0] * 4] * 3), twin.array([3] * 3)
    sampled = twin.array([[5], [5], [6]]), twin.array([1, 1, 1]), twin.array([2, 1, 0])
    twin.post_update(rows, computed, last, None, *sampled, None, ids, lens)
    assert [8, 3, 5] == computed.tolist()
    assert [[6], [12], [5]] == last.tolist()
    assert [[0, 0, 0, 6], [0] * 4, [0, 0, 0, 5]] == ids.tolist()
    assert [4, 3, 4] == lens.tolist()
