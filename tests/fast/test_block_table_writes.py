"""Writes by callers into the results of block tables.

Writes by torch bump a tensor's version, so the next call writes all of the buffer again. Writes
that torch cannot see are not allowed, and are detected in checked mode.
"""

from collections.abc import Callable

import pytest
import torch

import fast


def make_tables() -> fast.BlockTables:
    """Return tables with two rows of blocks, gathered, and slots of three tokens."""
    tables = fast.BlockTables([2, 4], 3, 6, 8, "cpu", pin_memory=False)
    tables.append_block_ids([0, 1], [[0, 2, 3], [0, 1, 2]], [[5, 9, 7], [3, 4]], [False, False])
    gather(tables)
    compute_slots(tables)
    return tables


def gather(tables: fast.BlockTables) -> list[list[list[int]]]:
    mapping = torch.tensor([0, 1, -1], dtype=torch.int32)
    return [table.tolist() for table in tables.gather_block_tables(mapping)]


def compute_slots(tables: fast.BlockTables) -> list[list[int]]:
    """Compute the slots of three tokens, and of one that is padding."""
    starts = torch.tensor([0, 2, 3, 3], dtype=torch.int32)
    return tables.compute_slot_mappings(starts, torch.tensor([1, 2, 0, 0])).tolist()


GATHERED = [
    [[5, 9, 0, 0], [7, 0, 0, 0], [0, 0, 0, 0]],
    [[3, 0], [4, 0], [0, 0]],
]
SLOTS = [[11, 18, 14, -1], [13, 14, 16, -1]]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.usefixtures("path")
def test_padding_that_runners_write(checked: bool) -> None:
    tables = make_tables()
    mapping = torch.tensor([0], dtype=torch.int32)
    with fast.checks(checked):
        for table in tables.gather_block_tables(torch.tensor([0, 1], dtype=torch.int32)):
            table[1:] = -1
        assert [[5, 9, 0, 0], [3, 0]] == [
            t[0].tolist() for t in tables.gather_block_tables(mapping)
        ]
        assert GATHERED == gather(tables)
        tables.compute_slot_mappings(mapping.new_tensor([0, 1]), torch.tensor([0, 0])).fill_(77)
        assert SLOTS == compute_slots(tables)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.usefixtures("path")
def test_all_of_the_buffers_is_written_again(checked: bool) -> None:
    tables = make_tables()
    whole = (*tables.get_dummy_block_tables(3), tables.get_dummy_slot_mappings(6))
    with fast.checks(checked):
        for view in whole:
            view.fill_(8)
        tables.gather_block_tables(torch.tensor([1], dtype=torch.int32))
        tables.compute_slot_mappings(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1]))
    assert [[7, 0, 0, 0], [0] * 4, [0] * 4] == whole[0].tolist()
    assert [[4, 0], [0, 0], [0, 0]] == whole[1].tolist()
    assert [[15, *[-1] * 5], [17, *[-1] * 5]] == whole[2].tolist()


Write = Callable[[torch.Tensor], object]


def through_numpy(view: torch.Tensor) -> None:
    """Write to the start of the view, through NumPy."""
    view.numpy()[-1, -1] = 99


def through_data(view: torch.Tensor) -> None:
    """Write to the start of the view, past torch's version counter."""
    view.data[-1, -1] = 99


UNSEEN = pytest.mark.parametrize("write", [through_numpy, through_data])


@UNSEEN
@pytest.mark.usefixtures("path")
def test_unseen_writes_into_tables_are_found(write: Write) -> None:
    tables = make_tables()
    view = tables.gather_block_tables(torch.tensor([0, 1, -1], dtype=torch.int32))[0]
    write(view)  # into a padded row, which the next step would not write again
    with fast.checks(enabled=True):
        with pytest.raises(ValueError, match="99"):
            gather(tables)
        assert GATHERED == gather(tables)
    assert SLOTS == compute_slots(tables)


@UNSEEN
def test_unseen_writes_into_kept_blocks_are_found(write: Write, path: str) -> None:
    tables = make_tables()
    for _ in range(2):
        tables.swap_rows(0, 1)
    view = tables.gather_block_tables(torch.tensor([0, 1], dtype=torch.int32))[1]
    write(view[:, :1])  # into a block that the next step on the host would not copy again
    with fast.checks(enabled=True):
        if path == "host":
            with pytest.raises(ValueError, match="99"):
                gather(tables)
        assert GATHERED == gather(tables)


@UNSEEN
def test_unseen_writes_into_slots_are_found(write: Write, path: str) -> None:
    tables = make_tables()
    write(tables.get_dummy_slot_mappings(6))  # after the tokens of the next step
    with fast.checks(enabled=True):
        if path == "host":
            with pytest.raises(ValueError, match="99"):
                compute_slots(tables)
        assert SLOTS == compute_slots(tables)
    assert [[-1, -1], [-1, -1]] == tables._slots[:, 4:].tolist()
