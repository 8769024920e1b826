"""Which slots a batch reads and writes, and attention over them; `reference` alone has these."""

from __future__ import annotations

import math

import numpy as np
import pytest

import reference
from reference import (
    dense_attention,
    kv_reads,
    kv_writes,
    merge_attention_states,
    paged_attention,
    write_kv_cache,
)
from tests.examples.twins import Twin

make_batch = Twin(reference).batch
INF = math.inf


@pytest.mark.parametrize(
    ("query_lens", "computed", "changes", "expected"),
    [
        # position 0 and 1 are in block 5, position 2 in block 9; each token reads up to itself
        (
            [2, 0],
            [1, 5],
            {"block_table_tensor": [[5, 9, 0], [7, 8, 6]]},
            {(0, 0, 10), (0, 1, 11), (1, 0, 10), (1, 1, 11), (1, 2, 18)},
        ),
        (
            [2, 0],
            [1, 5],
            {"block_table_tensor": [[5, 9, 0], [7, 8, 6]], "causal": False},
            {(0, 0, 10), (0, 1, 11), (0, 2, 18), (1, 0, 10), (1, 1, 11), (1, 2, 18)},
        ),
        # what is never read may be anything
        (
            [1, 0],
            [3, 5],
            {"block_table_tensor": [[5, 9, -1], [-1, -1, -1]]},
            {(0, 0, 10), (0, 1, 11), (0, 2, 18), (0, 3, 19)},
        ),
        ([0], [0], {"block_table_tensor": [[]]}, set()),
        ([1], [0], {"block_table_tensor": [[2**31 - 1]]}, {(0, 0, 2**32 - 2)}),
    ],
)
def test_reads(query_lens, computed, changes, expected) -> None:
    assert expected == kv_reads(make_batch(query_lens, computed, **changes), 2)


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        # a token at position 6, on ranks of 2: rank 0 has the positions 0, 2, 4, 6
        ([5, 9, 0], {"cp_world_size": 2}, {(0, 0, 10), (0, 2, 11), (0, 4, 18), (0, 6, 19)}),
        ([5, 9, 0], {"cp_world_size": 2, "cp_rank": 1}, {(0, 1, 10), (0, 3, 11), (0, 5, 18)}),
        (
            [5, 9, 0],
            {"cp_world_size": 2, "cp_kv_cache_interleave_size": 2},
            {(0, 0, 10), (0, 1, 11), (0, 4, 18), (0, 5, 19)},
        ),
        (
            [8, 3, 6],
            {"cp_world_size": 3, "kernel_block_size": 1},
            {(0, 0, 8), (0, 3, 3), (0, 6, 6)},
        ),
    ],
)
def test_reads_of_ranks(row, options, expected) -> None:
    assert expected == kv_reads(make_batch([1], [6], block_table_tensor=[row]), 2, **options)


def test_writes() -> None:
    # padding (-1) writes nothing, and slots behind the last token are not read
    batch = make_batch([2], [1], padding_tokens=1, slot_mapping=[7, -1, 2**40, 9])
    assert {(0, 7), (2, 2**40)} == kv_writes(batch)
    assert set() == kv_writes(make_batch([], [], padding_tokens=2))


def test_a_cache_is_written() -> None:
    cache, key = np.full((2, 3, 2, 1, 1), -1.0), np.array([[[5.0]], [[6.0]], [[7.0]]])
    assert write_kv_cache(key, key + 10, cache, np.array([3, -1, 0])) is None
    assert [[7, -1], [-1, 5], [-1, -1]] == cache[0, :, :, 0, 0].tolist()
    assert [[17, -1], [-1, 15], [-1, -1]] == cache[1, :, :, 0, 0].tolist()


@pytest.mark.parametrize(
    ("q", "k", "v", "output", "lse"),
    [
        # queries, keys and values of one element; each query sees all keys
        ([0], [3, 4], [5, 9], [7], [math.log(2)]),  # equal scores: the mean
        ([1], [0, math.log(3)], [4, 8], [7], [math.log(4)]),  # weights 1 and 3
        ([2], [0, math.log(3) / 2], [4, 8], [7], [math.log(4)]),  # the query scales them
        ([1], [-3000, 3000, 3000], [9, 1, 2], [1.5], [3000 + math.log(2)]),  # none overflows
        ([1, 2], [], [], [0, 0], [-INF, -INF]),  # no keys
    ],
)
def test_dense_attention(q, k, v, output, lse) -> None:
    q, k, v = (np.array(each, np.float64).reshape(-1, 1, 1) for each in (q, k, v))
    found = dense_attention(q, k, v, np.ones((len(q), len(k)), np.bool_))
    np.testing.assert_allclose(found[0][:, 0, 0], output, rtol=1e-15)
    np.testing.assert_allclose(found[1][:, 0], lse, rtol=1e-15)


def test_heads_use_the_keys_of_their_group() -> None:
    v = np.array([[[5.0], [9.0]]])
    output, _ = dense_attention(np.zeros((1, 4, 1)), np.zeros((1, 2, 1)), v, np.array([[True]]))
    assert [5, 5, 9, 9] == output[0, :, 0].tolist()


def test_what_is_masked_is_not_read() -> None:
    k = np.array([[[1.0]], [[np.nan]], [[np.inf]]])
    mask = np.array([[True, False, False], [False, False, False]])
    output, lse = dense_attention(np.ones((2, 1, 1)), k, k, mask)
    assert ([1, 0], [1, -INF]) == (output[:, 0, 0].tolist(), lse[:, 0].tolist())


# Block 4 has the values 1 and 2, block 1 has 6; the keys are 0, so outputs are means.
CACHE = np.full((2, 5, 2, 1, 1), np.nan)
CACHE[0, [4, 4, 1, 2], [0, 1, 0, 0]] = 0
CACHE[1, [4, 4, 1, 2], [0, 1, 0, 0], 0, 0] = (1, 2, 6, 50)


@pytest.mark.parametrize(
    ("causal", "window", "output", "lens"),
    [
        # tokens at the positions 1 and 2 of a request, at 0 of another, and padding
        (True, None, [1.5, 3, 50, 0], [2, 3, 1, 0]),
        (False, None, [3, 3, 50, 0], [3, 3, 1, 0]),
        (True, 1, [2, 6, 50, 0], [1, 1, 1, 0]),
        (True, 2, [1.5, 4, 50, 0], [2, 2, 1, 0]),
        (True, 3, [1.5, 3, 50, 0], [2, 3, 1, 0]),
        (True, 2**31 - 1, [1.5, 3, 50, 0], [2, 3, 1, 0]),
    ],
)
def test_paged_attention(causal, window, output, lens) -> None:
    table = [[4, 1, 0], [2, -1, 99]]
    batch = make_batch([2, 1], [1, 0], padding_tokens=1, block_table_tensor=table, causal=causal)
    q = np.array([1, 1, 1, np.nan]).reshape(4, 1, 1)
    found = paged_attention(q, CACHE, batch, sliding_window=window)
    assert output == found[0][:, 0, 0].tolist()
    assert [math.log(n) if n else -INF for n in lens] == found[1][:, 0].tolist()


def test_blocks_before_a_window_are_not_read() -> None:
    batch = make_batch([2], [2], block_table_tensor=[[-7, 1]])
    cache = np.where(np.isnan(CACHE), 0, CACHE)
    output, _ = paged_attention(np.ones((2, 1, 1)), cache, batch, sliding_window=1)
    assert [6, 0] == output[:, 0, 0].tolist()


@pytest.mark.parametrize(
    ("outputs", "lses", "output", "lse"),
    [
        # the mean of 2 keys is 7, that of 6 others is 3
        ([7, 3], [math.log(2), math.log(6)], 4, math.log(8)),
        ([7, np.nan], [math.log(2), -INF], 7, math.log(2)),  # a part without keys is not read
        ([7, np.nan], [0, np.nan], np.nan, np.nan),
        ([9, 5], [-INF, -INF], 0, -INF),
        ([], [], 0, -INF),
    ],
)
def test_merged_states(outputs, lses, output, lse) -> None:
    parts = np.array(outputs, np.float64), np.array(lses, np.float64)
    found = merge_attention_states(parts[0].reshape(-1, 1, 1, 1), parts[1].reshape(-1, 1, 1))
    np.testing.assert_allclose([found[0].item(), found[1].item()], [output, lse], rtol=1e-15)
