"""Chunked local attention: the virtual requests of a batch."""

from __future__ import annotations

import pytest

from tests.examples.twins import Twin, plain, shown


def test_three_requests(twin: Twin) -> None:
    # in chunks of 4, the positions 2 to 5 of the first request are two virtual requests;
    # each of them has the two blocks of its own chunk
    batch = twin.batch(
        [4, 10, 5],
        [2, 7, 4],
        padding_tokens=1,
        block_table_tensor=[list(range(10))] * 3,  # each block has the number of its column
        causal=False,
        logits_indices_padded=[3],
        num_logits_indices=1,
        encoder_seq_lens=[1, 2, 3],
        dcp_local_seq_lens=[1, 2, 3],
        is_prefilling=[False, True, False],
        positions=[*range(2, 6), *range(7, 17), *range(4, 9), 0],
        seq_lens_cpu_upper_bound=[7, 17, 9],
        dcp_local_seq_lens_cpu_upper_bound=[1, 2, 3],
        max_logits_per_req=2,
        req_idx=[4, 0, 6],
    )
    virtual = twin.make_local_attention_virtual_batches(4, batch, 2)
    virtual.validate(block_size=2)
    expected = {
        "query_start_loc": [0, 2, 4, 5, 9, 13, 14, 18, 19],
        "seq_lens": [4, 2, 4, 4, 4, 1, 4, 1],
        "num_computed_tokens_cpu": [2, 0, 3, 0, 0, 0, 0, 0],
        "num_reqs": 8,
        "num_actual_tokens": 20,
        "max_query_len": 4,
        "max_seq_len": 4,
        "block_table_tensor": [[0, 1], [2, 3], [2, 3], [4, 5], [6, 7], [8, 9], [2, 3], [4, 5]],
        "causal": True,
        "logits_indices_padded": None,
        "num_logits_indices": None,
        "encoder_seq_lens": None,
        "dcp_local_seq_lens": None,
        "is_prefilling": [False] * 2 + [True] * 4 + [False] * 2,
        "seq_lens_cpu_upper_bound": [4, 2, 4, 4, 4, 1, 4, 1],
        "dcp_local_seq_lens_cpu_upper_bound": None,
        "max_logits_per_req": 2,
        "req_idx": [4, 4, 0, 0, 0, 0, 6, 6],
    }
    assert expected == shown(virtual, expected)
    assert virtual.slot_mapping is batch.slot_mapping
    assert virtual.positions is batch.positions
    batch.seq_lens_cpu = None
    with pytest.raises(ValueError, match="seq_lens_cpu is None, but chunks need the exact"):
        twin.make_local_attention_virtual_batches(4, batch, 2)


@pytest.mark.parametrize(
    ("query_lens", "computed", "sizes", "starts", "seq_lens", "table"),
    [
        # sizes: of a chunk, of a block, and the number of columns
        # a request without tokens stays one, in the chunk of its last position
        ([0], [0], (4, 2, 5), [0, 0], [0], [[0, 1]]),
        ([0], [6], (4, 2, 5), [0, 0], [2], [[2, 3]]),
        ([0], [8], (4, 2, 5), [0, 0], [4], [[2, 3]]),
        ([0], [9], (4, 2, 5), [0, 0], [1], [[4, 4]]),
        ([1], [3], (4, 2, 5), [0, 1], [4], [[0, 1]]),  # the last token of a chunk
        ([1], [4], (4, 2, 5), [0, 1], [1], [[2, 3]]),  # the first of a chunk
        ([5], [3], (4, 2, 5), [0, 1, 5], [4, 4], [[0, 1], [2, 3]]),
        # columns past the last are those of the last
        ([3], [0], (8, 2, 2), [0, 3], [3], [[0, 1, 1, 1]]),
        ([1], [8], (8, 2, 5), [0, 1], [1], [[4, 4, 4, 4]]),
        ([0, 0], [0, 0], (6, 2, 0), [0, 0, 0], [0, 0], [[0] * 3] * 2),
        ([2], [3], (4, 4, 2), [0, 1, 2], [4, 1], [[0], [1]]),  # a block is a chunk
        ([3], [0], (1, 1, 3), [0, 1, 2, 3], [1, 1, 1], [[0], [1], [2]]),
        ([1, 0, 2], [0, 0, 3], (4, 2, 3), [0, 1, 1, 2, 3], [1, 0, 4, 1], [[0, 1]] * 3 + [[2, 2]]),
    ],
)
def test_corners(twin: Twin, query_lens, computed, sizes, starts, seq_lens, table) -> None:
    chunk, block_size, width = sizes
    columns = [list(range(width))] * len(query_lens)
    batch = twin.batch(query_lens, computed, block_table_tensor=columns)
    virtual = twin.make_local_attention_virtual_batches(chunk, batch, block_size)
    expected = {"query_start_loc": starts, "seq_lens": seq_lens, "block_table_tensor": table}
    assert expected == shown(virtual, expected)


def test_lengths_near_32_bits(twin: Twin) -> None:
    most = 2**31 - 1
    lens = {"seq_lens": [most], "seq_lens_cpu": [most], "max_seq_len": most}
    batch = twin.batch([2], [0], block_table_tensor=[[7, 8]], **lens)
    virtual = twin.make_local_attention_virtual_batches(2**30, batch, 2**30)
    expected = {"query_start_loc": [0, 2], "seq_lens": [2**30 - 1], "block_table_tensor": [[8]]}
    assert expected == shown(virtual, expected)


def test_positions_follow_from_the_lengths(twin: Twin) -> None:
    # after fast prefill, fewer tokens are computed than the sequence has before its query
    batch = twin.batch([2], [5], num_computed_tokens_cpu=[1])
    virtual = twin.make_local_attention_virtual_batches(4, batch, 2)
    assert [0, 2] == plain(virtual.query_start_loc)
    assert ([3], [1]) == (plain(virtual.seq_lens), plain(virtual.num_computed_tokens_cpu))
