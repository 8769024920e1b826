"""`BlockTables`, operation by operation, and `CpuGpuBuffer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin, plain, shares_memory


def make_tables(twin: Twin, *block_sizes: int, **options: Any) -> Any:
    """Make tables for 4 requests of at most 8 tokens, 6 tokens in a step."""
    widths = [8 // size for size in block_sizes]
    return twin.BlockTables(list(block_sizes), 4, 6, widths, device="cpu", **options)


def gather(twin: Twin, tables: Any, *slots: int, **options: Any) -> Any:
    rows = twin.array(slots)
    return plain(list(tables.gather_block_tables(rows, len(slots), **options)))


EMPTY = [0, 0, 0, 0]

# Writes to tables of one group: the request slot, the new blocks, and whether they replace the old
# ones; and the rows 0 to 3 after each.
HISTORY: list[tuple[tuple[int, list[int], bool], list[list[int]]]] = [
    ((1, [5, 6], False), [EMPTY, [5, 6, 0, 0], EMPTY, EMPTY]),
    ((1, [7], False), [EMPTY, [5, 6, 7, 0], EMPTY, EMPTY]),
    ((1, [], False), [EMPTY, [5, 6, 7, 0], EMPTY, EMPTY]),
    ((0, [9], True), [[9, 0, 0, 0], [5, 6, 7, 0], EMPTY, EMPTY]),
    ((0, [1, 2, 3, 4], True), [[1, 2, 3, 4], [5, 6, 7, 0], EMPTY, EMPTY]),
    ((0, [8], True), [[8, 0, 0, 0], [5, 6, 7, 0], EMPTY, EMPTY]),
    ((1, [4], False), [[8, 0, 0, 0], [5, 6, 7, 4], EMPTY, EMPTY]),
    ((0, [], True), [EMPTY, [5, 6, 7, 4], EMPTY, EMPTY]),
    ((3, [3], False), [EMPTY, [5, 6, 7, 4], EMPTY, [3, 0, 0, 0]]),
]


def test_a_history_of_one_group(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    for number, ((slot, ids, overwrite), expected) in enumerate(HISTORY):
        tables.append_block_ids(slot, [ids], overwrite)
        tables.apply_staged_writes()
        assert [expected] == gather(twin, tables, 0, 1, 2, 3), number


# Writes that are staged together: as above, and the rows 0 and 1 after all of them.
STAGED: list[tuple[list[tuple[int, list[int], bool]], list[list[int]]]] = [
    ([(0, [7], False), (0, [8], False)], [[5, 6, 7, 8], [9, 0, 0, 0]]),
    ([(0, [7], False), (0, [8], True)], [[8, 0, 0, 0], [9, 0, 0, 0]]),
    ([(0, [8], True), (0, [7], False)], [[8, 7, 0, 0], [9, 0, 0, 0]]),
    ([(0, [8, 7, 4], True), (0, [], True), (1, [3], False)], [EMPTY, [9, 3, 0, 0]]),
    ([(0, [], True), (1, [5, 6], True), (0, [9], True)], [[9, 0, 0, 0], [5, 6, 0, 0]]),
]


@pytest.mark.parametrize(("writes", "expected"), STAGED)
def test_writes_show_when_they_are_applied(twin: Twin, writes, expected) -> None:
    tables = make_tables(twin, 2)
    tables.append_block_ids(0, [ids := [5, 6]], False)
    tables.append_block_ids(1, [[9]], False)
    ids[0] = 99  # they were copied
    assert [[EMPTY, EMPTY]] == gather(twin, tables, 0, 1)
    tables.apply_staged_writes()
    for slot, new_ids, overwrite in writes:
        tables.append_block_ids(slot, [new_ids], overwrite)
    assert [[[5, 6, 0, 0], [9, 0, 0, 0]]] == gather(twin, tables, 0, 1)
    for _ in range(2):  # the second time there is nothing to apply
        tables.apply_staged_writes()
        assert [expected] == gather(twin, tables, 0, 1)


def test_a_row_holds_no_more_than_its_width_of_each_group(twin: Twin) -> None:
    tables = make_tables(twin, 2, 4)
    tables.append_block_ids(3, [[5, 6, 7], [8]], True)
    message = r"^new_block_ids\[1\] brings row 3 to 3 blocks, expected at most 2$"
    with pytest.raises(ValueError, match=message):
        tables.append_block_ids(3, [[4], [9, 1]], False)
    tables.append_block_ids(3, [[4], [9]], False)
    tables.apply_staged_writes()
    assert [[EMPTY, [5, 6, 7, 4]], [[0, 0], [8, 9]]] == gather(twin, tables, 0, 3)


def test_gathered_rows_change_at_the_next_gather(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    tables.append_block_ids(0, [[5, 6]], False)
    tables.append_block_ids(2, [[8]], False)
    tables.apply_staged_writes()
    (whole,) = tables.gather_block_tables(twin.array([1, 3, 2, 0]), 4)
    tables.append_block_ids(0, [[]], True)
    tables.apply_staged_writes()
    assert [EMPTY, EMPTY, [8, 0, 0, 0], [5, 6, 0, 0]] == whole.tolist()
    # -1 is a dummy: a row of null blocks; so are all rows behind those gathered
    (gathered,) = tables.gather_block_tables(twin.array([2, -1], "int64"), 3)
    assert [[8, 0, 0, 0], EMPTY, EMPTY] == gathered.tolist()
    assert EMPTY == whole[3].tolist()
    assert shares_memory(whole, gathered)
    assert (0, 4) == tables.gather_block_tables(twin.array([]), 0)[0].shape
    assert not whole.any()


@pytest.mark.parametrize(
    ("reach", "computed", "expected"),
    [
        # The first new token is at position 7; blocks of 2 before the window are null.
        (1, 7, [0, 0, 0, 4]),
        (2, 7, [0, 0, 3, 4]),
        (3, 7, [0, 0, 3, 4]),
        (4, 7, [0, 2, 3, 4]),
        (7, 7, [1, 2, 3, 4]),
        (9, 7, [1, 2, 3, 4]),
        (0, 7, [1, 2, 3, 4]),
        (1, 0, [1, 2, 3, 4]),
        (1, 2**31 - 1, [0, 0, 0, 0]),
    ],
)
def test_windows(twin: Twin, reach, computed, expected) -> None:
    reaches = [reach, 0]
    tables = make_tables(twin, 2, 4, sliding_window_reach=reaches)
    tables.append_block_ids(1, [[1, 2, 3, 4], [5, 6]], False)
    tables.apply_staged_writes()
    lens = twin.array([-1, computed, -1, -1])  # others are not read
    whole = [[[1, 2, 3, 4]], [[5, 6]]]
    for _ in range(2):
        assert [[expected], [[5, 6]]] == gather(twin, tables, 1, num_computed_tokens=lens)
    assert whole == gather(twin, tables, 1)
    assert [[expected], [[5, 6]]] == gather(twin, tables, 1, num_computed_tokens=lens)
    # Not with several ranks.
    tables = make_tables(twin, 2, 4, cp_size=2, sliding_window_reach=reaches)
    tables.append_block_ids(1, [[1, 2, 3, 4], [5, 6]], False)
    tables.apply_staged_writes()
    assert whole == gather(twin, tables, 1, num_computed_tokens=lens)


@pytest.mark.parametrize(
    ("slots", "starts", "positions", "num_padded", "expected"),
    [
        # slot 2 has the blocks 5, 9 of 2 tokens, and 3 of 4 tokens; slot 0 has the block 7
        ([2], [0, 3], [1, 2, 3, 99], 4, [[11, 18, 19, -1], [13, 14, 15, -1]]),
        ([2], [0, 3, 99], [0, 1, 2], 3, [[10, 11, 18], [12, 13, 14]]),
        ([], [0], [0, 1, 2], 3, [[-1, -1, -1], [-1, -1, -1]]),
        # past its blocks a row has the null block 0; a dummy has no slots
        ([2, -1, 0], [0, 1, 3, 5], [4, 99, -9, 1, 3], 5, [[0, -1, -1, 15, 1], [0, -1, -1, 1, 3]]),
        ([0, 2], [0, 0, 1], [3], 1, [[19], [15]]),
    ],
)
def test_slots_of_all_groups(twin: Twin, slots, starts, positions, num_padded, expected) -> None:
    tables = make_tables(twin, 2, 4)
    whole = tables.get_dummy_slot_mappings(6)
    tables.append_block_ids(2, [[5, 9], [3]], False)
    tables.append_block_ids(0, [[7], []], False)
    tables.apply_staged_writes()
    tables.gather_block_tables(twin.array([1]), 4)  # it does not matter what is gathered
    every = twin.array([0] * 6, "int64")
    tables.compute_slot_mappings(twin.array([0]), twin.array([0, 6]), every, 6)  # a longer step
    batch = twin.array(slots, "int64"), twin.array(starts), twin.array(positions, "int64")
    found = tables.compute_slot_mappings(*batch, num_padded)
    assert expected == found.tolist()
    assert [[*row, *[-1] * (6 - len(row))] for row in expected] == whole.tolist()
    assert shares_memory(whole, found)


@pytest.mark.parametrize(
    ("rank", "interleave", "expected"),
    [
        # Blocks of 2; of the block 5, ranks hold the positions 0 to 3.
        (0, 1, [10, -1, 11, -1, 18]),
        (1, 1, [-1, 10, -1, 11, -1]),
        (0, 2, [10, 11, -1, -1, 18]),
        (1, 2, [-1, -1, 10, 11, -1]),
    ],
)
def test_slots_of_a_rank(twin: Twin, rank, interleave, expected) -> None:
    # The second group is whole on each rank; the slots of the third are not computed.
    options = {"dcp_sharded": [True, False, True], "slot_mapping_enabled": [True, True, False]}
    ranks = {"cp_size": 2, "cp_rank": rank, "cp_interleave": interleave}
    tables = make_tables(twin, 2, 4, 2, **options, **ranks)
    tables.append_block_ids(1, [[5, 9], [3, 6], [4, 4]], False)
    tables.apply_staged_writes()
    batch = twin.array([1]), twin.array([0, 5]), twin.array([0, 1, 2, 3, 4], "int64")
    slots = tables.compute_slot_mappings(*batch, 6).tolist()
    assert [[*expected, -1], [12, 13, 14, 15, 24, -1], [-1] * 6] == slots


def test_dummies_clear_what_was_gathered(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    tables.append_block_ids(0, [[5, 6]], False)
    tables.apply_staged_writes()
    (whole,) = tables.gather_block_tables(twin.array([0]), 4)
    batch = twin.array([0]), twin.array([0, 2]), twin.array([0, 1], "int64")
    slots = tables.compute_slot_mappings(*batch, 2)
    assert [[EMPTY] * 3] == plain(list(tables.get_dummy_block_tables(3)))
    assert [[-1] * 5] == tables.get_dummy_slot_mappings(5).tolist()
    assert not whole.any()
    assert [[-1, -1]] == slots.tolist()
    assert [[[5, 6, 0, 0]]] == gather(twin, tables, 0)  # the request's own row is kept


def test_no_groups(twin: Twin) -> None:
    tables = make_tables(twin)
    tables.append_block_ids(0, [], False)
    tables.apply_staged_writes()
    assert () == tables.gather_block_tables(twin.array([0]), 1) == tables.get_dummy_block_tables(2)
    batch = twin.array([0]), twin.array([0, 1]), twin.array([0, 1, 2], "int64")
    assert (0, 3) == tables.compute_slot_mappings(*batch, 3).shape


@pytest.mark.parametrize(
    ("size", "n", "expected"),
    [
        ((3, 2), None, [[0, 0], [5, 7], [0, 0]]),
        ((3, 2), 2, [[0, 0], [5, 7]]),
        ((3, 2), np.int64(0), []),
        ((2, 0), None, [[], []]),
        ((0, 4), None, []),
    ],
)
def test_copies_return_the_part_that_was_copied(twin: Twin, size, n, expected) -> None:
    buffer = twin.CpuGpuBuffer(*size, dtype=twin.dtype("int32"), device="cpu", pin_memory=False)
    assert not buffer.cpu.any()
    if size == (3, 2):
        buffer.np[1] = [5, 7]
    assert expected == buffer.copy_to_gpu(n).tolist()
    assert expected == buffer.copy_to_cpu(n).tolist()
    assert shares_memory(buffer.copy_to_gpu(), buffer.gpu) == (size == (3, 2))
