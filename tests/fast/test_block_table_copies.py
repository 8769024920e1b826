"""Block tables that are copied, pickled, shared or sent to other processes."""

import copy
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing

import fast

Copy = Callable[[Any], Any]


def reduce_and_rebuild(value: object) -> object:
    """Pickle a value as `torch.multiprocessing` does, and load it in this process."""
    buffer = io.BytesIO()
    ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return pickle.loads(buffer.getbuffer())  # noqa: S301  (our own)


COPIES: dict[str, Copy] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301  (our own)
    "reduce": reduce_and_rebuild,
    "copy of a copy": lambda value: copy.deepcopy(pickle.loads(pickle.dumps(value))),  # noqa: S301  (our own)
}


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def make_tables() -> fast.BlockTables:
    """Return tables of two groups and three rows, gathered, with slots."""
    tables = fast.BlockTables([2, 4], 3, 6, 8, "cpu", pin_memory=False)
    tables.append_block_ids([0, 1], [[0, 2, 3], [0, 1, 2]], [[5, 9, 7], [3, 4]], [False, False])
    tables.gather_block_tables(int32(1, 0))
    tables.compute_slot_mappings(int32(0, 1, 3), torch.tensor([0, 1, 2]))
    return tables


def append(tables: fast.BlockTables, row: int, block_id: int) -> None:
    """Append a block to a row, in both groups."""
    tables.append_block_ids([row], [[0, 1], [0, 1]], [[block_id], [block_id + 1]], [False])


def gathered(tables: fast.BlockTables, *rows: int) -> list[list[list[int]]]:
    return [table.tolist() for table in tables.gather_block_tables(int32(*rows))]


def slots(tables: fast.BlockTables) -> list[list[int]]:
    """Compute the slots of three tokens, two of them of the second request."""
    return tables.compute_slot_mappings(int32(0, 1, 3), torch.tensor([0, 1, 2])).tolist()


SLOTS = [[14, 11, 18], [16, 13, 14]]
ROWS = [[[7, 0, 0, 0], [5, 9, 0, 0], [0] * 4], [[4, 0], [3, 0], [0, 0]]]


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.usefixtures("path")
def test_a_copy_is_as_its_original(name: str) -> None:
    tables: Any = make_tables()
    tables.label = "a caller's own"
    made = COPIES[name](tables)
    assert made.label == tables.label
    assert ([2, 4], 3, 6, torch.device("cpu")) == (
        made.block_sizes,
        made.max_num_reqs,
        made.max_num_batched_tokens,
        made.device,
    )
    assert SLOTS == slots(made)  # over what was gathered before
    assert ROWS == gathered(made, 1, 0, 2)
    assert SLOTS == slots(made)


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.usefixtures("path")
def test_a_copy_goes_its_own_way(name: str) -> None:
    tables = make_tables()
    made = COPIES[name](tables)
    views = tables.gather_block_tables(int32(1, 0, 2))
    append(made, 0, 21)
    made.swap_rows(1, 2)
    append(tables, 1, 31)
    assert [[5, 9, 21, 0], [0] * 4, [7, 0, 0, 0]] == gathered(made, 0, 1, 2)[0]
    assert [[3, 22], [0, 0], [4, 0]] == gathered(made, 0, 1, 2)[1]
    assert ROWS == [view.tolist() for view in views]
    assert [[5, 9, 0, 0], [7, 31, 0, 0], [0] * 4] == gathered(tables, 0, 1, 2)[0]
    assert [[3, 0], [4, 32], [0, 0]] == gathered(tables, 0, 1, 2)[1]
    with pytest.raises(ValueError, match=r"^new_block_ids\[1\] brings row 0 to 3 blocks, expecte"):
        append(made, 0, 23)


def share_results(tables: fast.BlockTables) -> None:
    for table in tables.gather_block_tables(int32(1, 0, 2)):
        table.share_memory_()
    tables.get_dummy_slot_mappings(6).share_memory_()


def send_results(tables: fast.BlockTables) -> None:
    """Pickle all results for another process, which moves them into shared memory."""
    reduce_and_rebuild([*tables.gather_block_tables(int32(1, 0, 2)), slots(tables)])
    reduce_and_rebuild(tables.get_dummy_slot_mappings(6))


@pytest.mark.parametrize("move", [share_results, send_results])
@pytest.mark.usefixtures("path")
def test_results_whose_memory_moves(move: Callable[[fast.BlockTables], None]) -> None:
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


def answer(tables: fast.BlockTables, views: list[torch.Tensor], queue: Any) -> None:  # noqa: ANN401
    """Use the tables in another process, and send their contents back."""
    found = [view.tolist() for view in views], slots(tables), gathered(tables, 1, 0, 2)
    append(tables, 0, 21)
    queue.put((*found, gathered(tables, 0)))


def test_tables_in_a_spawned_process() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    tables = make_tables()
    views = list(tables.gather_block_tables(int32(1, 0, 2)))
    process = context.Process(target=answer, args=(tables, views, queue))
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
    assert (ROWS, SLOTS, ROWS, [[[5, 9, 21, 0]], [[3, 22]]]) == queue.get()
    assert ROWS == gathered(tables, 1, 0, 2)
    assert SLOTS == slots(tables)
