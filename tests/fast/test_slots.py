import numpy as np
import pytest
import torch

import fast
from fast.slots import flat
from tests.fast.conftest import int32

OUTSIDE = 10**6
"""The value of memory that no call may read or write."""


def inside(values: torch.Tensor) -> torch.Tensor:
    """Return a strided view of these values in a tensor whose other elements are `OUTSIDE`."""
    around = torch.full([2 * n + 3 for n in values.shape], OUTSIDE, dtype=values.dtype)
    view = around[tuple(slice(2, 2 * n + 1, 2) for n in values.shape)]
    return view.copy_(values)


TABLE = int32([[5, 9], [7, 3]])
STARTS = int32([0, 3, 4])
POSITIONS = torch.tensor([1, 2, 3, 0])


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("position", [-1, -2, -(2**63), 4, 5, 2**31, 2**63 - 1])
def test_bad_positions_unchecked(position: int) -> None:
    table = inside(TABLE)
    positions = torch.tensor([1, position, 3, 0])
    with fast.checks(enabled=False):
        slots = fast.compute_slot_mapping(table, STARTS, positions, 2)
    assert slots.tolist() == [11, -1, 19, 14]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "starts",
    [[0, -5, 4], [3, 3, 4], [0, 9, 4], [-7, -7, 4], [4, 2, 1], [0, 2**31 - 1, 4], [-9, -9, -9]],
)
def test_bad_starts_unchecked(starts: list[int]) -> None:
    table = inside(TABLE)
    out = inside(torch.full((4,), -3))
    with fast.checks(enabled=False):
        slots = fast.compute_slot_mapping(table, int32(starts), POSITIONS, 2, out=out)
    assert all(-1 <= slot < OUTSIDE for slot in slots.tolist())
    assert out.as_strided((11,), (1,), 0)[1::2].tolist() == [OUTSIDE] * 5


@pytest.mark.usefixtures("path")
def test_negative_block_unchecked() -> None:
    with fast.checks(enabled=False):
        slots = fast.compute_slot_mapping(int32([[-1, 4]]), int32([0, 2]), POSITIONS[:2], 2)
    assert slots.tolist() == [-1, 8]


def test_too_many_tokens_on_the_host() -> None:
    with fast.checks(enabled=False), pytest.raises(ValueError, match="positions has 3 entries"):
        fast.compute_slot_mapping(TABLE, STARTS, POSITIONS[:3], 2)


@pytest.mark.parametrize("shape", [(4,), (3, 5), (0, 3), (2, 1)])
def test_flat_holds_a_view(shape: tuple[int, ...]) -> None:
    view = torch.arange(100).view(10, 10)[2:, 3:][tuple(slice(n) for n in shape)]
    line = flat(view)
    assert line.is_contiguous()
    places = np.array(list(np.ndindex(*view.shape)), dtype=np.int64).reshape(-1, view.dim())
    indices = torch.from_numpy(places @ np.array(view.stride(), dtype=np.int64))
    assert torch.equal(view.reshape(-1), line[indices])


@pytest.mark.usefixtures("path")
def test_positions_that_wrap_around() -> None:
    maximum = 2**63 - 1
    positions = torch.tensor([maximum, -maximum - 1, -maximum])
    table = int32([[5, 9], [77, 88]])[:1]
    assert [-1] * 3 == fast.compute_slot_mapping(table, int32([0, 3]), positions, 1).tolist()
    tables = fast.BlockTables([1], 1, 4, 4, "cpu", pin_memory=False)
    tables.append_block_ids([0], [[0, 1]], [[7]], [True])
    tables.gather_block_tables(int32([0]))
    assert [[-1] * 3] == tables.compute_slot_mappings(int32([0, 3]), positions).tolist()
