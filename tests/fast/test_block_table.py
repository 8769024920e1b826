"""Block tables as objects: addresses that stay, bad values, copies, and results that callers write.

Writes by torch bump a tensor's version, so the next call writes all of the buffer again.
"""

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

import fast
from fast import BlockTables
from fast.launch import simulated_by
from tests.fast.conftest import int32


def make_tables() -> BlockTables:
    """Return tables of two groups and three rows of up to 8 tokens, gathered, with slots."""
    tables = BlockTables([2, 4], 3, 6, [4, 2], "cpu")
    tables.append_block_ids(0, [[5, 9], [3]], overwrite=False)
    tables.append_block_ids(1, [[7], [4]], overwrite=False)
    tables.apply_staged_writes()
    gathered(tables, 1, 0)
    slots(tables)
    return tables


def append(tables: BlockTables, row: int, block_id: int) -> None:
    """Append a block to a row, in both groups."""
    tables.append_block_ids(row, [[block_id], [block_id + 1]], overwrite=False)
    tables.apply_staged_writes()


def gathered(tables: BlockTables, *rows: int) -> list[list[list[int]]]:
    return [table.tolist() for table in tables.gather_block_tables(int32([*rows]), len(rows))]


def slots(tables: BlockTables) -> list[list[int]]:
    """Compute the slots of three tokens, two of them of the second row, and of padding."""
    positions = torch.tensor([0, 1, 2, 0])
    return tables.compute_slot_mappings(int32([1, 0]), int32([0, 1, 3]), positions, 4).tolist()


SLOTS = [[14, 11, 18, -1], [16, 13, 14, -1]]
ROWS = [[[7, 0, 0, 0], [5, 9, 0, 0], [0] * 4], [[4, 0], [3, 0], [0, 0]]]


@pytest.mark.usefixtures("path")
def test_addresses_stay() -> None:
    tables = make_tables()

    def addresses(num_reqs: int) -> list[int]:
        views = [*tables.gather_block_tables(int32([0]), num_reqs)]
        batch = int32([0]), int32([0, 2]), torch.tensor([0, 1])
        views.append(tables.compute_slot_mappings(*batch, 1 + num_reqs))
        views += [*tables.get_dummy_block_tables(num_reqs), tables.get_dummy_slot_mappings(3)]
        return [view.data_ptr() for view in views]

    expected = addresses(1)
    assert expected[:3] == expected[3:]
    append(tables, 2, 1)
    assert expected == addresses(3)


@pytest.mark.usefixtures("path")
def test_views_are_the_same_objects_but_in_checked_mode() -> None:
    tables = BlockTables([2, 4], 99, 99, [4, 2], "cpu")
    batch = int32([0]), int32([0, 1]), torch.tensor([0])

    def views(size: int) -> list[Any]:
        first = tables.gather_block_tables(int32([0]), size)
        return [first, *first, tables.compute_slot_mappings(*batch, size)]

    made = views(2)
    dummies = tables.get_dummy_block_tables(2), tables.get_dummy_slot_mappings(2)
    assert all(a is b for a, b in zip(made, views(2), strict=True))
    assert (made[0], made[-1]) == dummies
    assert made[0] is dummies[0]
    with fast.checks(enabled=True):
        assert not any(a is b for a, b in zip(made, views(2), strict=True))
    for size in range(1, 99):
        views(size)
    assert max(len(tables._table_views), len(tables._slot_views)) <= 64
    assert (2, 4) == views(2)[1].shape


@pytest.mark.usefixtures("path")
def test_bad_values_with_checks_off() -> None:
    tables = make_tables()
    expected = [[[0] * 4, [7, 0, 0, 0], [0] * 4], [[0, 0], [4, 0], [0, 0]]]
    assert expected == gathered(tables, 3, 1, -2)
    assert expected == gathered(tables, 2**31 - 1, 1, -(2**31))
    positions = torch.tensor([-1, 8, 2**62, 1, 2**32 + 1, 2**63 - 1])
    batch = int32([1]), int32([0, 6]), positions
    found = tables.compute_slot_mappings(*batch, 6)
    assert [[-1, -1, -1, 15, -1, -1], [-1, -1, -1, 17, -1, -1]] == found.tolist()
    for row in (3, -2, 2**31 - 1):  # there is no such request slot
        found = tables.compute_slot_mappings(int32([row, 0]), int32([0, 5, 6]), positions * 0, 6)
        assert [[*[-1] * 5, 10], [*[-1] * 5, 12]] == found.tolist()
    for starts in ([0, 99], [-9, 6], [0, 2**31 - 1]):  # more tokens than positions, or than padded
        found = tables.compute_slot_mappings(int32([0]), int32(starts), positions[3:4], 5)
        assert [[11, *[-1] * 4], [13, *[-1] * 4]] == found.tolist()


def test_devices_are_checked() -> None:
    with pytest.raises(TypeError, match="device must be a device"):
        BlockTables([2], 4, 8, [4], 0)
    with pytest.raises(ValueError, match="idx_mapping is on meta, expected cpu"):
        make_tables().gather_block_tables(int32([0]).to("meta"), 1)
    tables = BlockTables([2], 4, 8, [4], "meta")
    row, starts = int32([0]).to("meta"), int32([0, 1]).to("meta")
    for checked in (False, True):
        with fast.checks(enabled=checked), pytest.raises(ValueError, match="meta"):
            tables.compute_slot_mappings(row, starts, row.long(), 1)


def test_unusual_ints_are_appended() -> None:
    tables = BlockTables([2], 4, 8, [4], "cpu")
    tables.append_block_ids(np.int64(2), [[np.int32(7), 8]], overwrite=np.True_)
    tables.apply_staged_writes()
    assert [[[7, 8, 0, 0]]] == gathered(tables, 2)
    for ids, error in (([True], TypeError), ([2**31], ValueError), ([2**64], ValueError)):
        with pytest.raises(error, match=r"new_block_ids\[0\]\[0\]"):
            tables.append_block_ids(2, [ids], overwrite=False)


def test_without_staged_writes_there_is_no_launch(simulate: Callable[..., None]) -> None:
    launched = []

    def launch(kernel: Any, *args: Any) -> None:
        launched.append(kernel.name)
        simulate(kernel, *args)

    with simulated_by(launch):
        tables = BlockTables([2, 4], 3, 6, [4, 2], "cpu")
        tables.apply_staged_writes()
        assert [] == launched
        for row in (0, 1, 0):
            tables.append_block_ids(row, [[5, 9], [3]], overwrite=False)
        for _ in range(2):
            tables.apply_staged_writes()
        assert ["apply_staged_writes"] == launched
        assert [[[5, 9, 5, 9], [5, 9, 0, 0]], [[3, 3], [3, 0]]] == gathered(tables, 0, 1)


# Copies, in this process and for others.


def reduce_and_rebuild(value: object) -> object:
    """Pickle a value as `torch.multiprocessing` does, and load it in this process."""
    buffer = io.BytesIO()
    ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return pickle.loads(buffer.getbuffer())  # noqa: S301  (our own)


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "reduce": reduce_and_rebuild,
    "copy of a copy": lambda value: copy.deepcopy(pickle.loads(pickle.dumps(value))),  # noqa: S301  (our own)
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.usefixtures("path")
def test_a_copy_is_as_its_original_and_goes_its_own_way(name: str) -> None:
    tables = make_tables()
    tables.append_block_ids(0, [[], [8]], overwrite=False)  # staged in both
    made = COPIES[name](tables)
    for one in (tables, made):
        sizes = one.block_sizes, one.max_num_reqs, one.max_num_batched_tokens
        assert ([2, 4], 3, 6) == sizes
        assert SLOTS == slots(one)
        assert ROWS == gathered(one, 1, 0, 2)
        assert SLOTS == slots(one)
        one.append_block_ids(0, [[5, 9], [3]], overwrite=True)
    views = tables.gather_block_tables(int32([1, 0, 2]), 3)
    append(made, 0, 21)
    append(tables, 1, 31)
    changed = [[[5, 9, 21, 0], [7, 0, 0, 0], [0] * 4], [[3, 22], [4, 0], [0, 0]]]
    assert changed == gathered(made, 0, 1, 2)
    assert ROWS == [view.tolist() for view in views]
    changed = [[[5, 9, 0, 0], [7, 31, 0, 0], [0] * 4], [[3, 0], [4, 32], [0, 0]]]
    assert changed == gathered(tables, 0, 1, 2)
    with pytest.raises(ValueError, match=r"^new_block_ids\[1\] brings row 0 to 3 blocks, expecte"):
        append(made, 0, 23)


def share_results(tables: BlockTables) -> None:
    for table in tables.gather_block_tables(int32([1, 0, 2]), 3):
        table.share_memory_()
    tables.get_dummy_slot_mappings(6).share_memory_()


def send_results(tables: BlockTables) -> None:
    """Pickle all results for another process, which moves them into shared memory."""
    reduce_and_rebuild([*tables.gather_block_tables(int32([1, 0, 2]), 3), slots(tables)])
    reduce_and_rebuild(tables.get_dummy_slot_mappings(6))


@pytest.mark.parametrize("move", [share_results, send_results])
@pytest.mark.usefixtures("path")
def test_results_whose_memory_moves(move: Callable[[BlockTables], None]) -> None:
    tables = make_tables()
    move(tables)
    ballast = [torch.full((64,), 7, dtype=torch.int32) for _ in range(64)]  # in what was freed
    assert ROWS == gathered(tables, 1, 0, 2)
    assert SLOTS == slots(tables)
    append(tables, 0, 21)
    assert [[7, 0, 0, 0], [5, 9, 21, 0]] == gathered(tables, 1, 0)[0]
    assert [[[0] * 4], [[0, 0]]] == [table.tolist() for table in tables.get_dummy_block_tables(1)]
    assert all(bool((each == 7).all()) for each in ballast)


def answer(tables: BlockTables, views: list[torch.Tensor], queue: Any) -> None:
    """Use the tables in another process, and send their contents back."""
    found = [view.tolist() for view in views], slots(tables), gathered(tables, 1, 0, 2)
    append(tables, 0, 21)
    queue.put((*found, gathered(tables, 0)))


def test_tables_in_a_spawned_process() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    tables = make_tables()
    views = list(tables.gather_block_tables(int32([1, 0, 2]), 3))
    process = context.Process(target=answer, args=(tables, views, queue))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
    assert (ROWS, SLOTS, ROWS, [[[5, 9, 21, 0]], [[3, 22]]]) == queue.get()
    assert (ROWS, SLOTS) == (gathered(tables, 1, 0, 2), slots(tables))


# Writes by callers into results.


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.usefixtures("path")
def test_what_callers_write_is_written_again(checked: bool) -> None:
    tables = make_tables()
    whole = (*tables.get_dummy_block_tables(3), tables.get_dummy_slot_mappings(6))
    with fast.checks(checked):
        for table in tables.gather_block_tables(int32([0, 1]), 2):
            table[1:] = -1  # padding, as runners write it
        assert [[[5, 9, 0, 0]], [[3, 0]]] == gathered(tables, 0)
        assert ROWS == gathered(tables, 1, 0, -1)
        batch = int32([0]), int32([0, 1]), torch.tensor([0, 0])
        tables.compute_slot_mappings(*batch, 2).fill_(77)
        assert SLOTS == slots(tables)
        for view in whole:
            view.fill_(8)
        gathered(tables, 1)
        tables.compute_slot_mappings(int32([1]), int32([0, 1]), torch.tensor([1]), 1)
    assert [[7, 0, 0, 0], [0] * 4, [0] * 4] == whole[0].tolist()
    assert [[4, 0], [0, 0], [0, 0]] == whole[1].tolist()
    assert [[15, *[-1] * 5], [17, *[-1] * 5]] == whole[2].tolist()
