"""The slots of tokens: `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

TABLE = [[5, 9], [7, 3]]
STARTS = [0, 3, 4]
POSITIONS = [1, 2, 3, 0]
PAD = -1


def slots_of(
    twin: Any, table: Any, starts: list[int], positions: list[int], *args: object, **kwargs: object
) -> list[int]:
    """Compute slots from lists, and return a list."""
    arrays = twin.array(table, "int32"), twin.int32(*starts), twin.int64(*positions)
    slots = twin.compute_slot_mapping(*arrays, *args, **kwargs)
    assert twin.dtype("int64") == slots.dtype
    result: list[int] = slots.tolist()
    return result


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, [11, 18, 19, 14]),
        ({"cp_world_size": 2, "cp_rank": 1}, [10, -1, 11, -1]),
        ({"cp_world_size": 2, "cp_rank": 0}, [-1, 11, -1, 14]),
        ({"kernel_block_size": 2}, [11, 18, 19, 14]),
        ({"cp_kv_cache_interleave_size": 2}, [11, 18, 19, 14]),
        ({"cp_world_size": 2, "cp_rank": 0, "cp_kv_cache_interleave_size": 2}, [11, -1, -1, 14]),
        ({"cp_world_size": 2, "cp_rank": 1, "cp_kv_cache_interleave_size": 2}, [-1, 10, 11, -1]),
    ],
)
def test_slots_of_the_example(twin: Any, kwargs: dict[str, int], expected: list[int]) -> None:
    assert expected == slots_of(twin, TABLE, STARTS, POSITIONS, 2, **kwargs)


def test_kernel_blocks(twin: Any) -> None:
    table = [[8, 3, 6, 1]]  # two blocks of 4, as kernel blocks of 2
    expected = [16, 17, 6, 7, 12, 13, 2, 3]
    assert expected == slots_of(twin, table, [0, 8], list(range(8)), 4, kernel_block_size=2)


def test_kernel_blocks_with_context_parallelism(twin: Any) -> None:
    world = {"kernel_block_size": 2, "cp_world_size": 2, "cp_kv_cache_interleave_size": 2}
    batch = [[8, 3, 6, 1]], [0, 16], list(range(16)), 4
    rank_0 = [16, 17, PAD, PAD, 6, 7, PAD, PAD, 12, 13, PAD, PAD, 2, 3, PAD, PAD]
    rank_1 = [PAD, PAD, 16, 17, PAD, PAD, 6, 7, PAD, PAD, 12, 13, PAD, PAD, 2, 3]
    assert rank_0 == slots_of(twin, *batch, **world, cp_rank=0)
    assert rank_1 == slots_of(twin, *batch, **world, cp_rank=1)


@pytest.mark.parametrize(
    ("table", "starts", "positions", "expected"),
    [
        pytest.param(TABLE, [0], [], [], id="no requests"),
        pytest.param(np.zeros((0, 2)), [0], [], [], id="no rows"),
        pytest.param(np.zeros((2, 0)), [0, 0], [1, 2], [-1, -1], id="no columns"),
        pytest.param(TABLE, [0], [-7, 99], [-1, -1], id="padding alone, never looked at"),
        pytest.param(TABLE, [0, 1, 1], [3, -7, 2**40], [19, -1, -1], id="padding behind"),
        pytest.param(TABLE, [0, 1], [3], [19], id="more rows than requests"),
        pytest.param(TABLE, [0, 4], [3, 0, 0, 2], [19, 10, 10, 18], id="positions in any order"),
        pytest.param([[5, -1], [7, -9]], [0, 1, 2], [0, 1], [10, 15], id="unread bad blocks"),
        pytest.param([[2**31 - 1]], [0, 1], [1], [2**32 - 1], id="a slot past 32 bits"),
    ],
)
def test_slots(
    twin: Any, table: Any, starts: list[int], positions: list[int], expected: list[int]
) -> None:
    assert expected == slots_of(twin, table, starts, positions, 2)
    with twin.checked():
        assert expected == slots_of(twin, table, starts, positions, 2)


def test_large_numbers(twin: Any) -> None:
    maximum = 2**31 - 1
    assert [maximum * maximum + maximum - 1] == slots_of(
        twin, [[maximum]], [0, 1], [maximum - 1], maximum
    )
    assert [300 * 100] == slots_of(twin, [[0, 300]], [0, 1], [100], np.int8(100))
    blocks, size = [list(range(10))], 2**29 + 2
    position = 9 * size + 2**28 + 3
    assert [position] == slots_of(twin, blocks, [0, 1], [position], size)
    ranks = {"cp_world_size": 2, "cp_rank": 1, "cp_kv_cache_interleave_size": 2}
    position = 9 * 2 * size + 2**28 + 3
    assert [9 * size + 2**27 + 1] == slots_of(twin, blocks, [0, 1], [position], size, **ranks)


def test_another_ranks_position_needs_no_column(twin: Any) -> None:
    assert [-1] == slots_of(twin, [[5]], [0, 1], [99], 2, cp_world_size=2, cp_rank=0)


def test_out_between_the_entries_of_an_input(twin: Any) -> None:
    both = twin.int64(1, 77, 2, 77, 3, 77, 0, 77)
    table, starts = twin.array(TABLE, "int32"), twin.int32(*STARTS)
    with twin.checked():
        twin.compute_slot_mapping(table, starts, both[::2], 2, out=both[1::2])
    assert [1, 11, 2, 18, 3, 19, 0, 14] == both.tolist()


def test_out_is_padded_to_its_end(twin: Any) -> None:
    out = twin.int64(*[77] * 7)
    table, starts = twin.array(TABLE, "int32"), twin.int32(*STARTS)
    slots = twin.compute_slot_mapping(table, starts, twin.int64(*POSITIONS, 50), 2, out=out)
    assert [11, 18, 19, 14, -1, -1, -1] == out.tolist()
    slots[4] = 8
    assert [11, 18, 19, 14, 8, -1, -1] == out.tolist()
    assert (5,) == slots.shape
    twin.compute_slot_mapping(table, twin.int32(0), twin.int64(), 2, out=out)
    assert [-1] * 7 == out.tolist()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_map_of_the_example(twin: Any, dtype: str) -> None:
    with twin.checked():
        result = twin.map_to_kernel_blocks(twin.array([0, 3], dtype), 2)
    assert [0, 1, 6, 7] == result.tolist()
    assert twin.dtype(dtype) == result.dtype


def test_map_of_rows(twin: Any) -> None:
    block_ids = twin.array([[1, 9, 0], [2, 9, 3]], "int32")[:, ::2]
    assert [[2, 3, 0, 1], [4, 5, 6, 7]] == twin.map_to_kernel_blocks(block_ids, 2).tolist()
    same = twin.map_to_kernel_blocks(block_ids, 1)
    assert block_ids.tolist() == same.tolist()
    assert not twin.shares_memory(same, block_ids)
    nothing = twin.convert(np.zeros((2, 0), np.int32))
    assert (2, 0) == twin.map_to_kernel_blocks(nothing, 2**31 - 1).shape


def test_map_to_the_edge_of_the_dtype(twin: Any) -> None:
    assert [126, 127] == twin.map_to_kernel_blocks(twin.array([63], "int8"), 2).tolist()
    last = 2**62 - 1
    assert [2 * last, 2 * last + 1] == twin.map_to_kernel_blocks(twin.int64(last), 2).tolist()
    assert [2**63 - 1] == twin.map_to_kernel_blocks(twin.int64(2**63 - 1), 1).tolist()
