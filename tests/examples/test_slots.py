"""Slots: the place of each token in the cache, kernel blocks, and context-parallel ranks."""

from __future__ import annotations

import pytest

from tests.examples.twins import Twin, shares_memory

PAD = -1
TABLE = [[5, 9], [7, 3]]  # request 0 owns the blocks 5 and 9, request 1 the blocks 7 and 3
KERNEL = [[8, 3, 6, 1]]  # two blocks of 4, as kernel blocks of 2
MOST = 2**31 - 1


def test_sentinels(twin: Twin) -> None:
    assert (PAD, 0) == (twin.PAD_SLOT_ID, twin.NULL_BLOCK_ID)


@pytest.mark.parametrize(
    ("table", "starts", "positions", "block_size", "expected"),
    [
        # slot = block of the position * block size + offset in the block:
        # position 1 is in block 5, 2 and 3 are in block 9; position 0 is in block 7
        pytest.param(TABLE, [0, 3, 4], [1, 2, 3, 0], 2, [11, 18, 19, 14], id="the example"),
        pytest.param(TABLE, [0, 4], [3, 0, 0, 2], 2, [19, 10, 10, 18], id="positions in any order"),
        pytest.param(TABLE, [0, 1], [3], 2, [19], id="more rows than requests"),
        pytest.param(TABLE, [0], [], 2, [], id="no requests"),
        pytest.param(TABLE, [0], [-7, 99], 2, [PAD, PAD], id="positions of padding are not read"),
        pytest.param(TABLE, [0, 1, 1], [3, -7, 2**40], 2, [19, PAD, PAD], id="padding behind"),
        pytest.param([[], []], [0, 0, 0], [1], 2, [PAD], id="no columns"),
        pytest.param([[5, -1], [7, -9]], [0, 1, 2], [0, 1], 2, [10, 15], id="unread bad blocks"),
        pytest.param([[MOST]], [0, 1], [1], 2, [2**32 - 1], id="a slot past 32 bits"),
        pytest.param([[MOST]], [0, 1], [MOST - 1], MOST, [MOST * MOST + MOST - 1], id="the last"),
    ],
)
def test_slots(twin: Twin, table, starts, positions, block_size, expected) -> None:
    arrays = twin.array(table), twin.array(starts), twin.array(positions, "int64")
    slots = twin.compute_slot_mapping(*arrays, block_size)
    assert (expected, twin.dtype("int64")) == (slots.tolist(), slots.dtype)


@pytest.mark.parametrize(
    ("table", "block_size", "options", "expected"),
    [
        # of 2 ranks, rank 0 holds the positions 0, 2, ..., rank 1 the positions 1, 3, ...
        (TABLE, 2, (2, 2, 0, 1), [10, PAD, 11, PAD, 18, PAD, 19, PAD]),
        (TABLE, 2, (2, 2, 1, 1), [PAD, 10, PAD, 11, PAD, 18, PAD, 19]),
        # with an interleave of 2, rank 0 holds 0, 1, 4, 5, rank 1 holds 2, 3, 6, 7
        (TABLE, 2, (2, 2, 0, 2), [10, 11, PAD, PAD, 18, 19, PAD, PAD]),
        (TABLE, 2, (2, 2, 1, 2), [PAD, PAD, 10, 11, PAD, PAD, 18, 19]),
        (KERNEL, 4, (2, 1, 0, 1), [16, 17, 6, 7, 12, 13, 2, 3]),
        (KERNEL, 4, (2, 2, 0, 2), [16, 17, PAD, PAD, 6, 7, PAD, PAD]),
        (KERNEL, 4, (2, 2, 1, 2), [PAD, PAD, 16, 17, PAD, PAD, 6, 7]),
        # a position of another rank needs no column
        ([[5]], 2, (2, 4, 0, 2), [10, 11, *[PAD] * 6]),
    ],
)
def test_slots_of_ranks_and_kernel_blocks(twin: Twin, table, block_size, options, expected) -> None:
    arrays = twin.array(table[:1]), twin.array([0, 8]), twin.array(list(range(8)), "int64")
    kernel_block_size, world, rank, interleave = options
    slots = twin.compute_slot_mapping(
        *arrays,
        block_size,
        kernel_block_size=kernel_block_size,
        cp_world_size=world,
        cp_rank=rank,
        cp_kv_cache_interleave_size=interleave,
    )
    assert expected == slots.tolist()


def test_out_is_padded_to_its_end(twin: Twin) -> None:
    out, table = twin.array([77] * 7, "int64"), twin.array(TABLE)
    starts, positions = twin.array([0, 3, 4]), twin.array([1, 2, 3, 0, 50], "int64")
    slots = twin.compute_slot_mapping(table, starts, positions, 2, out=out)
    assert [11, 18, 19, 14, PAD, PAD, PAD] == out.tolist()
    assert (5,) == slots.shape
    slots[4] = 8  # the result is the first part of `out`
    assert [11, 18, 19, 14, 8, PAD, PAD] == out.tolist()


@pytest.mark.parametrize(
    ("block_ids", "dtype", "blocks_per_kv_block", "expected"),
    [
        ([0, 3], "int32", 2, [0, 1, 6, 7]),
        ([0, 3], "uint8", 1, [0, 3]),
        ([[1, 0], [2, 3]], "int32", 3, [[3, 4, 5, 0, 1, 2], [6, 7, 8, 9, 10, 11]]),
        ([63], "int8", 2, [126, 127]),
        ([2**62 - 1], "int64", 2, [2**63 - 2, 2**63 - 1]),
        ([[], []], "int32", MOST, [[], []]),
    ],
)
def test_kernel_blocks(twin: Twin, block_ids, dtype, blocks_per_kv_block, expected) -> None:
    given = twin.array(block_ids, dtype)
    mapped = twin.map_to_kernel_blocks(given, blocks_per_kv_block)
    assert (expected, given.dtype) == (mapped.tolist(), mapped.dtype)
    assert not shares_memory(given, mapped)


@pytest.mark.parametrize(
    ("seq_lens", "args", "expected"),
    [
        # 5 tokens over 2 ranks, 2 tokens at a time: rank 0 has 0, 1, 4, rank 1 has 2, 3
        ([5, 8], (2, 0, 2), [3, 4]),
        ([5, 8], (2, 1, 2), [2, 4]),
        ([5, 8], (2, None, 2), [[3, 2], [4, 4]]),  # no rank: a column for each
        ([0, 1, 4], (3,), [[0, 0, 0], [1, 0, 0], [2, 1, 1]]),
        ([5, 8], (), [[5], [8]]),
        ([5, 8], (1, 0), [5, 8]),
        ([], (2, 1), []),
        ([MOST], (2,), [[2**30, 2**30 - 1]]),
        ([MOST], (MOST, MOST - 1), [1]),
        ([MOST], (2, 1, 2**30 - 1), [2**30 - 1]),
        ([MOST], (1, 0, MOST), [MOST]),
    ],
)
def test_lengths_on_ranks(twin: Twin, seq_lens, args, expected) -> None:
    lens = twin.get_dcp_local_seq_lens(twin.array(seq_lens), *args)
    assert (expected, twin.dtype("int32")) == (lens.tolist(), lens.dtype)


def test_lengths_on_ranks_into_a_longer_buffer(twin: Twin) -> None:
    out = twin.array([77] * 4)
    lens = twin.get_dcp_local_seq_lens(twin.array([5, 8]), 2, 0, out=out)
    assert ([3, 4], [3, 4, 0, 0]) == (lens.tolist(), out.tolist())  # zeros behind the batch
    assert shares_memory(lens, out)
