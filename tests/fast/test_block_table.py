from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import BlockTables
from fast.launch import simulated_by
from tests.fast.conftest import int32


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
    return [table.tolist() for table in tables.gather_block_tables(int32(rows))]


@pytest.mark.usefixtures("path")
def test_addresses_stay() -> None:
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
def test_bad_request_slots_unchecked() -> None:
    tables = filled()
    with fast.checks(enabled=False):
        views = tables.gather_block_tables(int32([4, 2, -2, 2**31 - 1]))
    assert [view.tolist() for view in views] == [
        [[0] * 4, [7, 8, 9, 0], [0] * 4, [0] * 4],
        [[0, 0], [5, 6], [0, 0], [0, 0]],
    ]


@pytest.mark.usefixtures("path")
def test_bad_positions_unchecked() -> None:
    tables = filled()
    tables.gather_block_tables(int32([2]))
    with fast.checks(enabled=False):
        positions = torch.tensor([-1, 8, 2**62, 1, 2**32 + 1])
        slots = tables.compute_slot_mappings(int32([0, 5]), positions)
    assert slots.tolist() == [[-1, -1, -1, 15, -1], [-1, -1, -1, 21, -1]]


@pytest.mark.usefixtures("path")
def test_outlive_inference_mode() -> None:
    with torch.inference_mode():
        tables = filled()
        tables.clear_row(0)
    tables.clear_row(2)
    tables.get_dummy_block_tables(1)
    tables.get_dummy_slot_mappings(1)
    assert gathered(tables, [0, 2]) == [[[0] * 4] * 2, [[0] * 2] * 2]


def test_devices_are_checked() -> None:
    with pytest.raises(TypeError, match="device must be a device"):
        BlockTables([2], 4, 8, 8, 0, False)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="idx_mapping is on meta, expected cpu"):
        filled().gather_block_tables(int32([0]).to("meta"))


def test_tables_on_another_device_compute_nothing() -> None:
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


ENDS = "cu_num_new_blocks"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (  # the difference of two ends does not fit into 64 bits
            (range(4), [[0, 2**63 - 1, -(2**63), -1, 5]], [[1, 2, 3, 4, 5]], [False] * 4),
            ValueError,
            rf"{ENDS}\[0\]",
        ),
        (([], [[0]], [np.array([])], []), TypeError, r"new_block_ids\[0\] must be a list"),
        *(
            ((range(n), [[*range(n), array]], [[7] * n], [True] * n), TypeError, message)
            for array in (np.array([0, 0]), torch.tensor([0, 0]))
            for n, message in enumerate(rf"{ENDS}\[0\]\[{i}\] must be an int" for i in range(2))
        ),
    ],
)
def test_what_cannot_be_appended(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    tables = fast.BlockTables([2], 4, 8, 64, "cpu", pin_memory=False)
    with pytest.raises(error, match=message):
        tables.append_block_ids(list(arguments[0]), *arguments[1:])


def test_an_array_is_no_list_of_ends() -> None:
    tables = fast.BlockTables([2, 4], 4, 8, 64, "cpu", pin_memory=False)
    with pytest.raises((TypeError, ValueError), match=ENDS):
        tables.append_block_ids([], [[np.array([0, 0])], [0, 0]], [[], []], [])  # type: ignore[list-item]


@pytest.mark.parametrize("change", ["append", "move", "swap", "gather"])
def test_the_host_sees_what_kernels_changed(change: str, simulate: Callable[..., None]) -> None:
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
