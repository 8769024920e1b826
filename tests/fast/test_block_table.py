"""Block tables as objects: addresses that stay, bad values, copies, and results that callers write.

Writes by torch bump a tensor's version, so the next call writes all of the buffer again. Writes
that torch cannot see are not allowed, and are detected in checked mode.
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
    tables = BlockTables([2, 4], 3, 6, 8, "cpu", pin_memory=False)
    tables.append_block_ids([0, 1], [[0, 2, 3], [0, 1, 2]], [[5, 9, 7], [3, 4]], [False, False])
    gathered(tables, 1, 0)
    slots(tables)
    return tables


def append(tables: BlockTables, row: int, block_id: int) -> None:
    """Append a block to a row, in both groups."""
    tables.append_block_ids([row], [[0, 1], [0, 1]], [[block_id], [block_id + 1]], [False])


def gathered(tables: BlockTables, *rows: int) -> list[list[list[int]]]:
    return [table.tolist() for table in tables.gather_block_tables(int32([*rows]))]


def slots(tables: BlockTables) -> list[list[int]]:
    """Compute the slots of three tokens, two of them of the second request, and of padding."""
    positions = torch.tensor([0, 1, 2, 0])
    return tables.compute_slot_mappings(int32([0, 1, 3, 3]), positions).tolist()


SLOTS = [[14, 11, 18, -1], [16, 13, 14, -1]]
ROWS = [[[7, 0, 0, 0], [5, 9, 0, 0], [0] * 4], [[4, 0], [3, 0], [0, 0]]]


@pytest.mark.usefixtures("path")
def test_addresses_stay() -> None:
    tables = make_tables()

    def addresses(num_reqs: int) -> list[int]:
        views = [*tables.gather_block_tables(int32([0] * num_reqs))]
        views.append(tables.compute_slot_mappings(int32([0, 2]), torch.tensor([0, 1])))
        views += [*tables.get_dummy_block_tables(num_reqs), tables.get_dummy_slot_mappings(3)]
        return [view.data_ptr() for view in views]

    expected = addresses(1)
    assert expected[:3] == expected[3:]
    append(tables, 2, 1)
    assert expected == addresses(3)


@pytest.mark.usefixtures("path")
def test_bad_values_with_checks_off() -> None:
    tables = make_tables()
    expected = [[[0] * 4, [7, 0, 0, 0], [0] * 4], [[0, 0], [4, 0], [0, 0]]]
    assert expected == gathered(tables, 3, 1, -2)
    assert expected == gathered(tables, 2**31 - 1, 1, -(2**31))
    gathered(tables, 0)
    positions = torch.tensor([-1, 8, 2**62, 1, 2**32 + 1, 2**63 - 1])
    found = tables.compute_slot_mappings(int32([0, 6]), positions)
    assert [[-1, -1, -1, 11, -1, -1], [-1, -1, -1, 13, -1, -1]] == found.tolist()


def test_devices_are_checked() -> None:
    with pytest.raises(TypeError, match="device must be a device"):
        BlockTables([2], 4, 8, 8, 0, False)
    with pytest.raises(ValueError, match="idx_mapping is on meta, expected cpu"):
        make_tables().gather_block_tables(int32([0]).to("meta"))
    tables = BlockTables([2], 4, 8, 8, "meta", False)
    starts, positions = int32([0, 1]).to("meta"), torch.zeros(1, dtype=torch.int64, device="meta")
    for checked in (False, True):
        with fast.checks(enabled=checked), pytest.raises(ValueError, match="meta"):
            tables.compute_slot_mappings(starts, positions)


def test_the_largest_tables_are_laid_out() -> None:
    tables = object.__new__(BlockTables)
    most = {"max_num_reqs": 2**31 - 1, "max_num_batched_tokens": 1, "max_model_len": 2**30}
    vars(tables).update(most, block_sizes=[1])
    assert 2**61 - 2**30 == tables._lay_out()[1]


@pytest.mark.parametrize(
    ("ends", "ids", "error"),
    [
        # The difference of two ends does not fit into 64 bits.
        ([0, 2**63 - 1, -(2**63), -1, 5], [1, 2, 3, 4, 5], ValueError),
        ([0, np.array([0, 0])], [7], TypeError),
        ([0, torch.tensor([0, 0])], [7], TypeError),
        ([np.array([0, 0])], [], TypeError),
        ([0], np.array([]), TypeError),
    ],
)
def test_what_cannot_be_appended(ends: list[Any], ids: Any, error: type[Exception]) -> None:
    tables = BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    num_rows = len(ends) - 1
    with pytest.raises(error, match=r"cu_num_new_blocks\[0\]|new_block_ids\[0\] must be a list"):
        tables.append_block_ids([*range(num_rows)], [ends], [ids], [True] * num_rows)


@pytest.mark.parametrize("change", ["append", "move", "swap", "gather"])
def test_the_host_sees_what_kernels_changed(change: str, simulate: Callable[..., None]) -> None:
    tables = BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    tables.append_block_ids([0, 1], [[0, 1, 2]], [[7, 9]], [True, True])
    gathered(tables, 0)
    with simulated_by(simulate):
        {
            "append": lambda: tables.append_block_ids([0], [[0, 1]], [[9]], [True]),
            "move": lambda: tables.move_row(1, 0),
            "swap": lambda: tables.swap_rows(0, 1),
            "gather": lambda: gathered(tables, 1),
        }[change]()
    expected = 7 if change == "gather" else 9
    assert expected == gathered(tables, 0)[0][0][0]


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
    tables: Any = make_tables()
    tables.label = "a caller's own"
    made = COPIES[name](tables)
    for one in (tables, made):
        sizes = one.block_sizes, one.max_num_reqs, one.max_num_batched_tokens
        assert ("a caller's own", [2, 4], 3, 6) == (one.label, *sizes)
        assert SLOTS == slots(one)  # over what was gathered before
        assert ROWS == gathered(one, 1, 0, 2)
        assert SLOTS == slots(one)
    views = tables.gather_block_tables(int32([1, 0, 2]))
    append(made, 0, 21)
    made.swap_rows(1, 2)
    append(tables, 1, 31)
    changed = [[[5, 9, 21, 0], [0] * 4, [7, 0, 0, 0]], [[3, 22], [0, 0], [4, 0]]]
    assert changed == gathered(made, 0, 1, 2)
    assert ROWS == [view.tolist() for view in views]
    changed = [[[5, 9, 0, 0], [7, 31, 0, 0], [0] * 4], [[3, 0], [4, 32], [0, 0]]]
    assert changed == gathered(tables, 0, 1, 2)
    with pytest.raises(ValueError, match=r"^new_block_ids\[1\] brings row 0 to 3 blocks, expecte"):
        append(made, 0, 23)


def share_results(tables: BlockTables) -> None:
    for table in tables.gather_block_tables(int32([1, 0, 2])):
        table.share_memory_()
    tables.get_dummy_slot_mappings(6).share_memory_()


def send_results(tables: BlockTables) -> None:
    """Pickle all results for another process, which moves them into shared memory."""
    reduce_and_rebuild([*tables.gather_block_tables(int32([1, 0, 2])), slots(tables)])
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
    tables.move_row(0, 2)
    assert [[7, 0, 0, 0], [5, 9, 21, 0]] == gathered(tables, 1, 2)[0]
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
    views = list(tables.gather_block_tables(int32([1, 0, 2])))
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
        for table in tables.gather_block_tables(int32([0, 1])):
            table[1:] = -1  # padding, as runners write it
        assert [[[5, 9, 0, 0]], [[3, 0]]] == gathered(tables, 0)
        assert ROWS == gathered(tables, 1, 0, -1)
        tables.compute_slot_mappings(int32([0, 1]), torch.tensor([0, 0])).fill_(77)
        assert SLOTS == slots(tables)
        for view in whole:
            view.fill_(8)
        gathered(tables, 1)
        tables.compute_slot_mappings(int32([0, 1]), torch.tensor([1]))
    assert [[7, 0, 0, 0], [0] * 4, [0] * 4] == whole[0].tolist()
    assert [[4, 0], [0, 0], [0, 0]] == whole[1].tolist()
    assert [[15, *[-1] * 5], [17, *[-1] * 5]] == whole[2].tolist()


def through_numpy(view: torch.Tensor) -> None:
    view.numpy()[-1, -1] = 99


def through_data(view: torch.Tensor) -> None:
    """Write past torch's version counter."""
    view.data[-1, -1] = 99


@pytest.mark.parametrize("write", [through_numpy, through_data])
@pytest.mark.parametrize("place", ["padding", "kept blocks", "slots"])
def test_unseen_writes_are_found(
    place: str, write: Callable[[torch.Tensor], None], path: str
) -> None:
    tables = make_tables()
    act, expected = {
        # A padded row, which the next step would not write again.
        "padding": (lambda: gathered(tables, 1, 0, -1), ROWS),
        # A block that the next step on the host would not copy again.
        "kept blocks": (lambda: gathered(tables, 1, 0, -1), ROWS),
        # After the tokens of the next step.
        "slots": (lambda: slots(tables), SLOTS),
    }[place]
    for _ in range(2 * (place == "kept blocks")):
        tables.swap_rows(0, 1)
    act()
    write(
        tables.get_dummy_slot_mappings(6)
        if place == "slots"
        else tables.gather_block_tables(int32([1, 0, -1]))[0]
        if place == "padding"
        else tables.gather_block_tables(int32([1, 0]))[1][:, :1]
    )
    with fast.checks(enabled=True):
        if path == "host" or place == "padding":
            with pytest.raises(ValueError, match="99"):
                act()
        assert expected == act()
    assert [[-1, -1], [-1, -1]] == tables._slots[:, 4:].tolist()
