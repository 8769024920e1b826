import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import BlockTables
from fast.kernels.cuda import Kernel
from fast.launch import simulated_by


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def make(block_sizes: list[int] | None = None) -> BlockTables:
    """Make tables of 4 request slots, 8 tokens, and sequences up to 8 tokens."""
    return BlockTables(block_sizes or [2, 4], 4, 8, 8, "cpu", pin_memory=False)


def filled() -> BlockTables:
    """Make tables whose request slots 0 and 2 have blocks."""
    tables = make()
    tables.append_block_ids(
        [2, 0], [[0, 3, 4], [0, 2, 3]], [[7, 8, 9, 4], [5, 6, 3]], [False, False]
    )
    return tables


def gathered(tables: BlockTables, rows: list[int]) -> list[list[list[int]]]:
    """Gather some rows and return them as lists."""
    return [table.tolist() for table in tables.gather_block_tables(int32(rows))]


def state(tables: BlockTables) -> list[Any]:
    """Return all that tables hold."""
    held = [tables._tables, tables._num_blocks, tables._gathered, tables._num_gathered]
    return [x.tolist() for x in (*held, tables._slots, tables._counts.blocks)]


@pytest.mark.usefixtures("path")
def test_appends_and_overwrites() -> None:
    """Ids go behind a row's, or become the whole row; other rows stay."""
    tables = filled()
    tables.append_block_ids([0, 2], [[0, 2, 3], [0, 0, 1]], [[1, 2, 3], [9]], [False, True])
    assert gathered(tables, [0, 1, 2, 3]) == [
        [[4, 1, 2, 0], [0, 0, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0]],
        [[3, 0], [0, 0], [9, 0], [0, 0]],
    ]


@pytest.mark.usefixtures("path")
def test_rows_move() -> None:
    """Moving empties the source; swapping takes rows of unlike lengths; clearing empties."""
    tables = filled()
    tables.swap_rows(0, 2)
    tables.swap_rows(1, 1)
    assert gathered(tables, [0, 1, 2]) == [
        [[7, 8, 9, 0], [0] * 4, [4, 0, 0, 0]],
        [[5, 6], [0, 0], [3, 0]],
    ]
    tables.move_row(0, 3)
    tables.move_row(2, 2)
    assert gathered(tables, [3, 0, 2]) == [
        [[7, 8, 9, 0], [0] * 4, [4, 0, 0, 0]],
        [[5, 6], [0, 0], [3, 0]],
    ]
    tables.clear_row(3)
    tables.append_block_ids([3], [[0, 1], [0, 0]], [[1], []], [False])
    assert gathered(tables, [3]) == [[[1, 0, 0, 0]], [[0, 0]]]


@pytest.mark.usefixtures("path")
def test_lengths_are_known_on_both_sides() -> None:
    """After every change the host's count of blocks is the device's."""
    tables = filled()
    steps = [
        lambda: tables.append_block_ids([1], [[0, 2], [0, 1]], [[1, 2], [3]], [False]),
        lambda: tables.swap_rows(1, 2),
        lambda: tables.move_row(0, 3),
        lambda: tables.clear_row(2),
        lambda: tables.append_block_ids([3], [[0, 0], [0, 2]], [[], [1, 2]], [True]),
    ]
    for step in steps:
        step()
        assert tables._num_blocks.tolist() == tables._counts.blocks.tolist()


@pytest.mark.usefixtures("path")
def test_addresses_stay() -> None:
    """What is handed out is at the same addresses in every step."""
    tables = filled()
    starts, positions = int32([0, 2]), torch.tensor([0, 1])

    def addresses(num_reqs: int) -> list[int]:
        views = [*tables.gather_block_tables(int32([0] * num_reqs))]
        views.append(tables.compute_slot_mappings(starts, positions))
        views += [*tables.get_dummy_block_tables(num_reqs), tables.get_dummy_slot_mappings(3)]
        return [view.data_ptr() for view in views]

    expected = addresses(1)
    assert expected[:3] == expected[3:]
    tables.append_block_ids([1], [[0, 4], [0, 2]], [[1, 2, 3, 4], [5, 6]], [False])
    assert expected == addresses(4)


@pytest.mark.usefixtures("path")
def test_what_an_earlier_step_left_is_cleared() -> None:
    """Past a row's blocks, and past the gathered rows, the persistent buffers hold nulls."""
    tables = filled()
    whole = tables.get_dummy_block_tables(4)
    slots = tables.get_dummy_slot_mappings(8)
    tables.gather_block_tables(int32([2, 2, 0]))
    tables.compute_slot_mappings(int32([0, 3]), torch.arange(5))
    assert slots.tolist() == [[14, 15, 16, -1, -1, -1, -1, -1], [20, 21, 22, -1, -1, -1, -1, -1]]
    tables.gather_block_tables(int32([0, -1]))
    tables.compute_slot_mappings(int32([0, 1]), torch.arange(1))
    assert whole[0].tolist() == [[4, 0, 0, 0]] + [[0] * 4] * 3
    assert whole[1].tolist() == [[3, 0]] + [[0, 0]] * 3
    assert slots.tolist() == [[8] + [-1] * 7, [12] + [-1] * 7]
    tables.gather_block_tables(int32([]))
    assert not any(table.any() for table in whole)


@pytest.mark.usefixtures("path")
def test_dummies_clear_everything() -> None:
    """A dummy run sees nulls and no slots, and the next gather still knows what is there."""
    tables = filled()
    tables.gather_block_tables(int32([2]))
    tables.compute_slot_mappings(int32([0, 2]), torch.arange(2))
    assert [t.tolist() for t in tables.get_dummy_block_tables(1)] == [[[0] * 4], [[0] * 2]]
    assert tables.get_dummy_slot_mappings(1).tolist() == [[-1], [-1]]
    assert (tables._slots == -1).all()
    assert gathered(tables, [-1, 2]) == [[[0] * 4, [7, 8, 9, 0]], [[0, 0], [5, 6]]]


@pytest.mark.usefixtures("path")
def test_gathered_tables_change_at_the_next_gather_only() -> None:
    """Changes to request slots don't reach what was gathered."""
    tables = filled()
    views = tables.gather_block_tables(int32([2, 0]))
    before = [view.tolist() for view in views]
    tables.swap_rows(2, 0)
    tables.clear_row(2)
    tables.append_block_ids([0], [[0, 1], [0, 0]], [[77], []], [True])
    assert before == [view.tolist() for view in views]


@pytest.mark.usefixtures("path")
def test_bad_request_slots_unchecked() -> None:
    """A request slot that is not there gives a row of nulls, and no neighbour's."""
    tables = filled()
    with fast.checks(enabled=False):
        views = tables.gather_block_tables(int32([4, 2, -2, 2**31 - 1]))
    assert [view.tolist() for view in views] == [
        [[0] * 4, [7, 8, 9, 0], [0] * 4, [0] * 4],
        [[0, 0], [5, 6], [0, 0], [0, 0]],
    ]


@pytest.mark.usefixtures("path")
def test_bad_positions_unchecked() -> None:
    """Positions outside a group's table have no slot there."""
    tables = filled()
    tables.gather_block_tables(int32([2]))
    with fast.checks(enabled=False):
        positions = torch.tensor([-1, 8, 2**62, 1, 2**32 + 1])
        slots = tables.compute_slot_mappings(int32([0, 5]), positions)
    assert slots.tolist() == [[-1, -1, -1, 15, -1], [-1, -1, -1, 21, -1]]


@pytest.mark.usefixtures("path")
def test_strided_arguments() -> None:
    """Views are read where they stand."""
    tables = filled()
    assert torch.equal(
        tables.gather_block_tables(int32([2, 9, 0, 9])[::2])[1], torch.tensor([[5, 6], [3, 0]])
    )
    starts, positions = int32([0, 9, 1, 9, 2])[::2], torch.tensor([1, 9, 0])[::2]
    assert tables.compute_slot_mappings(starts, positions).tolist() == [[15, 8], [21, 12]]


@pytest.mark.usefixtures("path")
def test_without_groups() -> None:
    """Without KV cache groups there is nothing to hold, and nothing fails."""
    tables = BlockTables([], 4, 8, 8, "cpu", pin_memory=False)
    tables.append_block_ids([1], [], [], [False])
    tables.swap_rows(0, 1)
    assert tables.gather_block_tables(int32([1])) == ()
    assert tables.compute_slot_mappings(int32([0, 2]), torch.arange(2)).shape == (0, 2)
    assert tables.get_dummy_slot_mappings(3).shape == (0, 3)
    for starts in ([0, 2, 1], [1, 1], [0, 3]):
        with fast.checks(enabled=True), pytest.raises(ValueError, match="query_start_loc"):
            tables.compute_slot_mappings(int32(starts), torch.arange(2))


@pytest.mark.usefixtures("path")
def test_outlive_inference_mode() -> None:
    """Tables that are made in inference mode can be written outside, and the other way round."""
    with torch.inference_mode():
        tables = filled()
        tables.clear_row(0)
    tables.clear_row(2)
    tables.get_dummy_block_tables(1)
    tables.get_dummy_slot_mappings(1)
    assert gathered(tables, [0, 2]) == [[[0] * 4] * 2, [[0] * 2] * 2]


GOOD: dict[str, Any] = {
    "req_indices": [1, 2],
    "cu_num_new_blocks": [[0, 1, 2], [0, 0, 0]],
    "new_block_ids": [[4, 5], []],
    "overwrite": [True, False],
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"req_indices": (1, 2)}, TypeError, "req_indices must be a list, got tuple"),
        ({"req_indices": [1, 2.0]}, TypeError, r"req_indices\[1\] must be an int"),
        ({"req_indices": [1, 4]}, IndexError, r"req_indices\[1\] is 4, expected 0 to 3"),
        ({"req_indices": [-1, 2]}, IndexError, r"req_indices\[0\] is -1"),
        ({"req_indices": [1, 1]}, ValueError, r"^req_indices\[1\] is 1, the same as req_indices"),
        ({"overwrite": [True]}, ValueError, "overwrite has 1 entries, expected 2"),
        ({"overwrite": [True, 0]}, TypeError, r"overwrite\[1\] must be a bool, got 0"),
        ({"cu_num_new_blocks": [[0, 1, 2]]}, ValueError, "cu_num_new_blocks has 1 entries"),
        (
            {"cu_num_new_blocks": [[0, 1, 2], [0, 0]]},
            ValueError,
            r"cu_num_new_blocks\[1\] has 2 entries, expected 3",
        ),
        (
            {"cu_num_new_blocks": [[1, 1, 2], [0, 0, 0]]},
            ValueError,
            r"^cu_num_new_blocks\[0\]\[0\] is 1, expected 0",
        ),
        (
            {"cu_num_new_blocks": [[0, 1, 1], [0, 0, 0]]},
            ValueError,
            r"^cu_num_new_blocks\[0\]\[2\] is 1, expected 2, the length of new_block_ids\[0\]",
        ),
        (
            {"cu_num_new_blocks": [[0, 3, 2], [0, 0, 0]]},
            ValueError,
            r"cu_num_new_blocks\[0\]\[1\] is 3, expected 0 to 2",
        ),
        ({"new_block_ids": [[4, 5], None]}, TypeError, r"new_block_ids\[1\] must be a list"),
        ({"new_block_ids": [[4, -5], []]}, ValueError, r"new_block_ids\[0\]\[1\] is -5"),
        ({"new_block_ids": [[2**31, 5], []]}, ValueError, r"new_block_ids\[0\]\[0\] is 2147483648"),
        (
            {"cu_num_new_blocks": [[0, 0, 2], [0, 0, 0]]},
            ValueError,
            r"^new_block_ids\[0\] brings row 2 to 5 blocks, expected at most 4",
        ),
    ],
)
def test_append_refuses(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """Lists are checked in any mode, and after an error nothing is written."""
    tables = filled()
    before = state(tables)
    arguments = {**copy.deepcopy(GOOD), **changes}
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        tables.append_block_ids(**arguments)
    assert before == state(tables)
    tables.append_block_ids(**copy.deepcopy(GOOD))


def test_ends_that_fall() -> None:
    """Ends that fall between are refused, though they begin and end right."""
    message = r"cu_num_new_blocks\[0\]\[2\] is 1, less than 2 before it"
    with pytest.raises(ValueError, match=message):
        make([2]).append_block_ids([0, 1, 2], [[0, 2, 1, 3]], [[1, 2, 3]], [False] * 3)


@pytest.mark.parametrize("row", [-1, 4])
def test_rows_that_are_not_there(row: int) -> None:
    """A request slot out of range is an IndexError, and True is no request slot."""
    tables = filled()
    before = state(tables)
    for method in (tables.move_row, tables.swap_rows):
        with pytest.raises(IndexError, match=f"is {row}, expected 0 to 3"):
            method(row, 0)
        with pytest.raises(IndexError, match=f"is {row}, expected 0 to 3"):
            method(0, row)
        with pytest.raises(TypeError, match="must be an int, got True"):
            method(0, True)
    with pytest.raises(IndexError, match=f"r is {row}, expected 0 to 3"):
        tables.clear_row(row)
    assert before == state(tables)


def test_gather_refuses() -> None:
    """A mapping of another kind is refused in any mode, a bad entry in checked mode."""
    tables = filled()
    with pytest.raises(TypeError, match=r"^idx_mapping must be int32, got int64"):
        tables.gather_block_tables(torch.tensor([1]))
    with pytest.raises(ValueError, match="idx_mapping has 5 entries, expected at most 4"):
        tables.gather_block_tables(int32([0] * 5))
    with pytest.raises(ValueError, match="idx_mapping is on meta, expected cpu"):
        tables.gather_block_tables(int32([0]).to("meta"))
    with fast.checks(enabled=True):
        for entry in (-2, 4):
            with pytest.raises(IndexError, match=rf"idx_mapping\[1\] is {entry}"):
                tables.gather_block_tables(int32([0, entry]))


@pytest.mark.parametrize(
    ("starts", "positions", "message"),
    [
        ([0] * 6, [], "query_start_loc has 5 requests, expected at most 4"),
        ([0, 1], [0] * 9, "positions has 9 entries, expected at most 8"),
        ([0, 2], [0], r"query_start_loc\[-1\] is 2, but positions has 1"),
        ([0, 1], [8], r"positions\[0\] is 8 and needs column 4"),
        ([0, 1], [-1], r"positions\[0\] is -1"),
        ([0, 1, 0], [0], r"query_start_loc\[2\] is 0"),
    ],
)
def test_slots_refuse(starts: list[int], positions: list[int], message: str) -> None:
    """After an error the persistent slots are as they were."""
    tables = filled()
    tables.gather_block_tables(int32([2]))
    tables.compute_slot_mappings(int32([0, 2]), torch.arange(2))
    before = state(tables)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=message):
        tables.compute_slot_mappings(int32(starts), torch.tensor(positions, dtype=torch.int64))
    assert before == state(tables)


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, (2,), TypeError, "block_sizes must be a list"),
        (0, [2, 0], ValueError, r"block_sizes\[1\] is 0"),
        (1, 0, ValueError, "max_num_reqs is 0"),
        (2, 2**31, ValueError, "max_num_batched_tokens is 2147483648"),
        (3, None, TypeError, "max_model_len must be an int"),
        (4, 0, TypeError, "device must be a device"),
        (5, 1, TypeError, "pin_memory must be a bool"),
    ],
)
def test_constructor_refuses(
    position: int, value: object, error: type[Exception], message: str
) -> None:
    """What is wrong is told with its name."""
    arguments: list[Any] = [[2], 4, 8, 8, "cpu", False]
    arguments[position] = value
    with pytest.raises(error, match=message):
        BlockTables(*arguments)


def test_dummies_refuse() -> None:
    """More than the tables are for is a ValueError."""
    with pytest.raises(ValueError, match="num_reqs is 5, expected 0 to 4"):
        make().get_dummy_block_tables(5)
    with pytest.raises(ValueError, match="num_tokens is -1, expected 0 to 8"):
        make().get_dummy_slot_mappings(-1)


@pytest.mark.parametrize(("threads", "seed"), [(1, 0), (3, 1), (32, 2), (7, 3)])
def test_any_block_of_threads(threads: int, seed: int, simulate: Callable[..., None]) -> None:
    """The kernels' results are the host's, for any threads in a block and any order of them."""

    def launch(kernel: Kernel, grid: tuple[int, int], size: int, args: tuple[object, ...]) -> None:
        simulate(kernel, grid, size, args, seed=seed)

    def live(tables: BlockTables) -> list[Any]:
        tables.append_block_ids([1, 3], [[0, 1, 4], [0, 2, 2]], [[9, 8, 7, 6], [5, 4]], [True] * 2)
        tables.swap_rows(1, 2)
        tables.move_row(3, 1)
        tables.gather_block_tables(int32([1, -1, 2, 1]))
        tables.compute_slot_mappings(int32([0, 2, 2, 5]), torch.tensor([0, 3, 1, 6, 2, 7]))
        return state(tables)

    expected = live(filled())
    tables = filled()
    with simulated_by(launch, threads=threads):
        assert expected == live(tables)


def test_ends_that_wrap_around_are_refused() -> None:
    """Ends whose differences do not fit into 64 bits are refused before they are subtracted."""
    tables = fast.BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    ends = [0, 2**63 - 1, -(2**63), -1, 5]
    with pytest.raises(ValueError, match=r"cu_num_new_blocks\[0\]"):
        tables.append_block_ids([0, 1, 2, 3], [ends], [[1, 2, 3, 4, 5]], [False] * 4)


def test_nothing_in_arrays_is_refused() -> None:
    """What is no list is a TypeError where nothing is appended, too."""
    tables = fast.BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    with pytest.raises(TypeError, match=r"new_block_ids\[0\] must be a list"):
        tables.append_block_ids([], [[0]], [np.array([])], [])  # type: ignore[list-item]  # wrong


@pytest.mark.parametrize("array", [np.array([0, 0]), torch.tensor([0, 0])], ids=["numpy", "torch"])
@pytest.mark.parametrize("rows", [0, 1])
def test_an_array_is_no_end(array: Any, rows: int) -> None:  # noqa: ANN401  # what is not expected
    """An array among the ends is a TypeError, not an array whose truth is asked for."""
    tables = fast.BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    ends = [[*range(rows), array]]
    with pytest.raises(TypeError, match=rf"cu_num_new_blocks\[0\]\[{rows}\] must be an int"):
        tables.append_block_ids([*range(rows)], ends, [[7] * rows], [True] * rows)


def test_an_array_is_no_list_of_ends() -> None:
    """One is told from an end, though another group has an end too many."""
    tables = fast.BlockTables([2, 4], 4, 8, 64, "cpu", pin_memory=False)
    ends: Any = [[np.array([0, 0])], [0, 0]]
    with pytest.raises((TypeError, ValueError), match="cu_num_new_blocks"):
        tables.append_block_ids([], ends, [[], []], [])


@pytest.mark.parametrize("change", ["append", "move", "swap", "gather"])
def test_the_host_sees_what_kernels_changed(change: str, simulate: Callable[..., None]) -> None:
    """Tables that served the device path are gathered anew on the host."""
    tables = fast.BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    tables.append_block_ids([0, 1], [[0, 1, 2]], [[7, 9]], [True, True])
    first = torch.tensor([0], dtype=torch.int32)
    tables.gather_block_tables(first)
    with simulated_by(simulate):
        {
            "append": lambda: tables.append_block_ids([0], [[0, 1]], [[9]], [True]),
            "move": lambda: tables.move_row(1, 0),
            "swap": lambda: tables.swap_rows(0, 1),
            "gather": lambda: tables.gather_block_tables(first + 1),
        }[change]()
    expected = 7 if change == "gather" else 9
    assert expected == tables.gather_block_tables(first)[0][0, 0]
