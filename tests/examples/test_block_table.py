"""`BlockTables`, operation by operation, and `CpuGpuBuffer`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin, plain, shares_memory


def make_tables(twin: Twin, *block_sizes: int) -> Any:
    """Make tables for 4 requests of at most 7 tokens, 6 tokens in a step."""
    return twin.BlockTables(list(block_sizes), 4, 6, 7, device="cpu", pin_memory=False)


def gather(twin: Twin, tables: Any, *rows: int) -> Any:
    return plain(list(tables.gather_block_tables(twin.array(rows))))


EMPTY = [0, 0, 0, 0]

# Operations on tables of one group, and the rows 0 to 3 after each.
# "append" has the row, the new blocks, and whether they replace the old ones.
HISTORY: list[tuple[str, tuple[Any, ...], list[list[int]]]] = [
    ("append", (1, [5, 6], False), [EMPTY, [5, 6, 0, 0], EMPTY, EMPTY]),
    ("append", (1, [7], False), [EMPTY, [5, 6, 7, 0], EMPTY, EMPTY]),
    ("append", (1, [], False), [EMPTY, [5, 6, 7, 0], EMPTY, EMPTY]),
    ("append", (0, [9], True), [[9, 0, 0, 0], [5, 6, 7, 0], EMPTY, EMPTY]),
    ("swap_rows", (0, 1), [[5, 6, 7, 0], [9, 0, 0, 0], EMPTY, EMPTY]),
    ("swap_rows", (1, 1), [[5, 6, 7, 0], [9, 0, 0, 0], EMPTY, EMPTY]),
    ("move_row", (1, 3), [[5, 6, 7, 0], EMPTY, EMPTY, [9, 0, 0, 0]]),
    ("append", (3, [8], False), [[5, 6, 7, 0], EMPTY, EMPTY, [9, 8, 0, 0]]),  # its length moved too
    ("append", (1, [4], False), [[5, 6, 7, 0], [4, 0, 0, 0], EMPTY, [9, 8, 0, 0]]),
    ("move_row", (1, 0), [[4, 0, 0, 0], EMPTY, EMPTY, [9, 8, 0, 0]]),
    ("move_row", (0, 0), [[4, 0, 0, 0], EMPTY, EMPTY, [9, 8, 0, 0]]),
    ("append", (0, [1, 2, 3, 4], True), [[1, 2, 3, 4], EMPTY, EMPTY, [9, 8, 0, 0]]),
    ("append", (0, [8], True), [[8, 0, 0, 0], EMPTY, EMPTY, [9, 8, 0, 0]]),
    ("clear_row", (3,), [[8, 0, 0, 0], EMPTY, EMPTY, EMPTY]),
    ("append", (0, [], True), [EMPTY, EMPTY, EMPTY, EMPTY]),
]


def test_a_history_of_one_group(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    for number, (method, arguments, expected) in enumerate(HISTORY):
        if method == "append":
            row, ids, overwrite = arguments
            tables.append_block_ids([row], [[0, len(ids)]], [ids], [overwrite])
        else:
            getattr(tables, method)(*arguments)
        assert [expected] == gather(twin, tables, 0, 1, 2, 3), (number, method)


def test_blocks_of_several_requests_and_groups(twin: Twin) -> None:
    tables = make_tables(twin, 2, 4)
    # in the first group, request 3 gets the block 5, request 1 the blocks 6 and 7
    tables.append_block_ids([3, 1], [[0, 1, 3], [0, 2, 2]], [[5, 6, 7], [8, 4]], [False, False])
    tables.append_block_ids([], [[0], [0]], [[], []], [])
    first, second = gather(twin, tables, 0, 1, 2, 3)
    assert [EMPTY, [6, 7, 0, 0], EMPTY, [5, 0, 0, 0]] == first
    assert [[0, 0], [0, 0], [0, 0], [8, 4]] == second
    tables.swap_rows(1, 3)
    assert [[[5, 0, 0, 0], [6, 7, 0, 0]], [[8, 4], [0, 0]]] == gather(twin, tables, 1, 3)
    tables.move_row(3, 0)
    tables.clear_row(1)
    assert [[[6, 7, 0, 0], EMPTY], [[0, 0], [0, 0]]] == gather(twin, tables, 0, 1)


def test_gathered_rows_change_at_the_next_gather(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    ids = [5, 6]
    tables.append_block_ids([0], [[0, 2]], [ids], [False])
    ids[0] = 99  # they were copied
    (whole,) = tables.gather_block_tables(twin.array([0, 0, 0, 0]))
    tables.clear_row(0)
    assert [[5, 6, 0, 0]] * 4 == whole.tolist()
    tables.append_block_ids([2], [[0, 1]], [[8]], [False])
    # -1 is padding: a row of null blocks; so are all rows behind those gathered
    (gathered,) = tables.gather_block_tables(twin.array([2, -1, 2]))
    assert [[8, 0, 0, 0], EMPTY, [8, 0, 0, 0]] == gathered.tolist()
    assert EMPTY == whole[3].tolist()
    assert shares_memory(whole, gathered)
    assert (0, 4) == tables.gather_block_tables(twin.array([]))[0].shape
    assert not whole.any()


@pytest.mark.parametrize(
    ("rows", "starts", "positions", "expected"),
    [
        # row 2 has the blocks 5, 9 of 2 tokens, and the block 3 of 4 tokens
        ([2], [0, 3], [1, 2, 3, 99], [[11, 18, 19, -1], [13, 14, 15, -1]]),
        ([2], [0, 3], [0, 1, 2], [[10, 11, 18], [12, 13, 14]]),
        ([2], [0], [0, 1, 2], [[-1, -1, -1], [-1, -1, -1]]),
        # rows that are not gathered hold the null block 0
        ([2], [0, 1, 2], [1, 3], [[11, 1], [13, 3]]),
        (
            [2, -1, -1, -1],
            [0, 2, 4, 5, 6],
            [0, 1, 0, 7, 2, 4],
            [[10, 11, 0, 1, 0, 0], [12, 13, 0, 3, 2, 0]],
        ),
    ],
)
def test_slots_of_all_groups(twin: Twin, rows, starts, positions, expected) -> None:
    tables = make_tables(twin, 2, 4)
    whole = tables.get_dummy_slot_mappings(6)
    tables.append_block_ids([2], [[0, 2], [0, 1]], [[5, 9], [3]], [False])
    tables.gather_block_tables(twin.array(rows))
    every = twin.array([0] * 6, "int64")
    tables.compute_slot_mappings(twin.array([0, 6]), every)  # an earlier, longer step
    slots = tables.compute_slot_mappings(twin.array(starts), twin.array(positions, "int64"))
    assert expected == slots.tolist()
    assert [[*row, *[-1] * (6 - len(row))] for row in expected] == whole.tolist()
    assert shares_memory(whole, slots)


def test_dummies_clear_what_was_gathered(twin: Twin) -> None:
    tables = make_tables(twin, 2)
    tables.append_block_ids([0], [[0, 2]], [[5, 6]], [False])
    (whole,) = tables.gather_block_tables(twin.array([0, 0, 0, 0]))
    slots = tables.compute_slot_mappings(twin.array([0, 2]), twin.array([0, 1], "int64"))
    assert [[EMPTY] * 3] == plain(list(tables.get_dummy_block_tables(3)))
    assert [[-1] * 5] == tables.get_dummy_slot_mappings(5).tolist()
    assert not whole.any()
    assert [[-1, -1]] == slots.tolist()
    assert [[[5, 6, 0, 0]]] == gather(twin, tables, 0)  # the request's own row is kept


def test_no_groups(twin: Twin) -> None:
    tables = make_tables(twin)
    tables.append_block_ids([0], [], [], [False])
    assert () == tables.gather_block_tables(twin.array([0])) == tables.get_dummy_block_tables(2)
    arguments = twin.array([0, 1]), twin.array([0, 1, 2], "int64")
    assert (0, 3) == tables.compute_slot_mappings(*arguments).shape


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
