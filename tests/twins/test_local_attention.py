"""Chunked local attention: the virtual requests of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.twins.arrays import counts_of


def columns(twin: Any, num_reqs: int, width: int) -> Any:
    """Return a block table in which each block id is its own column."""
    return twin.convert(np.tile(np.arange(width, dtype=np.int32), (num_reqs, 1)))


def query_lens_of(metadata: Any) -> list[int]:
    lens: list[int] = np.diff(metadata.query_start_loc.tolist()).tolist()
    return lens


def test_the_example(twin: Any, make_batch: Any) -> None:
    batch = make_batch(
        [4, 10, 5],
        [2, 7, 4],
        padding_tokens=1,
        block_table_tensor=columns(twin, 3, 10),
        causal=False,
        logits_indices_padded=twin.int64(3),
        num_logits_indices=1,
        encoder_seq_lens=twin.int64(1, 2, 3),
        dcp_local_seq_lens=twin.int32(1, 2, 3),
    )
    virtual = twin.make_local_attention_virtual_batches(4, batch, 2)
    virtual.validate(block_size=2)
    assert [2, 2, 1, 4, 4, 1, 4, 1] == query_lens_of(virtual)
    assert virtual.query_start_loc.tolist() == virtual.query_start_loc_cpu.tolist()
    assert [4, 2, 4, 4, 4, 1, 4, 1] == virtual.seq_lens.tolist() == virtual.seq_lens_cpu.tolist()
    assert [2, 0, 3, 0, 0, 0, 0, 0] == virtual.num_computed_tokens_cpu.tolist()
    expected = [[0, 1], [2, 3], [2, 3], [4, 5], [6, 7], [8, 9], [2, 3], [4, 5]]
    assert expected == virtual.block_table_tensor.tolist()
    assert (8, 20, 4, 4) == counts_of(virtual)
    assert virtual.slot_mapping is batch.slot_mapping
    assert virtual.causal is True
    assert virtual.logits_indices_padded is virtual.num_logits_indices is None
    assert virtual.encoder_seq_lens is virtual.dcp_local_seq_lens is None


@pytest.mark.parametrize(
    ("query_lens", "computed", "chunk", "block_size", "width", "expected"),
    [
        pytest.param([0], [0], 4, 2, 5, ([0], [0], [[0, 1]]), id="nothing at all"),
        pytest.param([0], [6], 4, 2, 5, ([0], [2], [[2, 3]]), id="no tokens, within a chunk"),
        pytest.param([0], [8], 4, 2, 5, ([0], [4], [[2, 3]]), id="no tokens, at a chunk's end"),
        pytest.param([0], [9], 4, 2, 5, ([0], [1], [[4, 4]]), id="no tokens, past a chunk's end"),
        pytest.param([1], [3], 4, 2, 5, ([1], [4], [[0, 1]]), id="the last of a chunk"),
        pytest.param([1], [4], 4, 2, 5, ([1], [1], [[2, 3]]), id="the first of a chunk"),
        pytest.param([5], [3], 4, 2, 5, ([1, 4], [4, 4], [[0, 1], [2, 3]]), id="ends with one"),
        pytest.param([3], [0], 8, 2, 2, ([3], [3], [[0, 1, 1, 1]]), id="a table less wide"),
        pytest.param([1], [8], 8, 2, 5, ([1], [1], [[4, 4, 4, 4]]), id="one column is left"),
        pytest.param([2], [3], 4, 4, 2, ([1, 1], [4, 1], [[0], [1]]), id="blocks as chunks"),
        pytest.param([3], [0], 1, 1, 3, ([1, 1, 1], [1, 1, 1], [[0], [1], [2]]), id="chunks of 1"),
        pytest.param(
            [1, 0, 2],
            [0, 0, 3],
            4,
            2,
            3,
            ([1, 0, 1, 1], [1, 0, 4, 1], [[0, 1], [0, 1], [0, 1], [2, 2]]),
            id="an empty request between others",
        ),
    ],
)
def test_corners(
    twin: Any,
    make_batch: Any,
    query_lens: list[int],
    computed: list[int],
    chunk: int,
    block_size: int,
    width: int,
    expected: tuple[list[int], list[int], list[list[int]]],
) -> None:
    table = columns(twin, len(query_lens), width)
    batch = make_batch(query_lens, computed, block_table_tensor=table)
    with twin.checked():
        virtual = twin.make_local_attention_virtual_batches(chunk, batch, block_size)
    assert expected == (
        query_lens_of(virtual),
        virtual.seq_lens.tolist(),
        virtual.block_table_tensor.tolist(),
    )


def test_a_table_of_no_columns(twin: Any, make_batch: Any) -> None:
    batch = make_batch([0, 0], [0, 0], block_table_tensor=twin.convert(np.zeros((2, 0), np.int32)))
    virtual = twin.make_local_attention_virtual_batches(6, batch, 2)
    assert [[0, 0, 0], [0, 0, 0]] == virtual.block_table_tensor.tolist()


def test_positions_follow_from_the_lengths(twin: Any, make_batch: Any) -> None:
    batch = make_batch([2], [5], num_computed_tokens_cpu=twin.int32(1))
    virtual = twin.make_local_attention_virtual_batches(4, batch, 2)
    assert ([2], [3], [1]) == (
        query_lens_of(virtual),
        virtual.seq_lens.tolist(),
        virtual.num_computed_tokens_cpu.tolist(),
    )


def test_lengths_near_32_bits(twin: Any, make_batch: Any) -> None:
    length = twin.int32(2**31 - 1)
    batch = make_batch(
        [2],
        [0],
        seq_lens=length,
        seq_lens_cpu=length,
        max_seq_len=2**31 - 1,
        block_table_tensor=twin.array([[7, 8]], "int32"),
    )
    virtual = twin.make_local_attention_virtual_batches(2**30, batch, 2**30)
    assert ([2], [2**30 - 1], [[8]]) == (
        query_lens_of(virtual),
        virtual.seq_lens.tolist(),
        virtual.block_table_tensor.tolist(),
    )
