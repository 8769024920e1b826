import numpy as np
import pytest
import torch

import fast
from fast.slots import flat

STRANGER = 10**6


def int32(values: list[int] | list[list[int]]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def inside(values: torch.Tensor, stranger: int) -> torch.Tensor:
    """Return a strided view of these values in a tensor that is full of strangers."""
    around = torch.full([2 * n + 3 for n in values.shape], stranger, dtype=values.dtype)
    view = around[tuple(slice(2, 2 * n + 1, 2) for n in values.shape)]
    return view.copy_(values)


TABLE = int32([[5, 9], [7, 3]])
STARTS = int32([0, 3, 4])
POSITIONS = torch.tensor([1, 2, 3, 0])


@pytest.mark.usefixtures("path")
def test_strided_arguments() -> None:
    """Views are read where they stand, without what is between their elements."""
    table, starts = inside(TABLE, STRANGER), inside(STARTS, STRANGER)
    out = inside(torch.zeros(6, dtype=torch.int64), STRANGER)
    result = fast.compute_slot_mapping(table, starts, inside(POSITIONS, STRANGER), 2, out=out)
    assert out.tolist() == [11, 18, 19, 14, -1, -1]
    assert result.data_ptr() == out.data_ptr()
    assert result.tolist() == [11, 18, 19, 14]
    between = torch.full((15,), STRANGER)
    between[2:13:2] = out
    assert torch.equal(between, out.as_strided((15,), (1,), 0))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("position", [-1, -2, -(2**63), 4, 5, 2**31, 2**63 - 1])
def test_bad_positions_unchecked(position: int) -> None:
    """A position outside the table has no slot: no neighbour's block is looked up."""
    table = inside(TABLE, STRANGER)
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
    """Whatever the starts are, nothing outside the table is read or outside the result written."""
    table = inside(TABLE, STRANGER)
    out = inside(torch.full((4,), -3), STRANGER)
    with fast.checks(enabled=False):
        slots = fast.compute_slot_mapping(table, int32(starts), POSITIONS, 2, out=out)
    assert all(-1 <= slot < STRANGER for slot in slots.tolist())
    assert out.as_strided((11,), (1,), 0)[1::2].tolist() == [STRANGER] * 5


@pytest.mark.usefixtures("path")
def test_negative_block_unchecked() -> None:
    """A negative block has no slots."""
    with fast.checks(enabled=False):
        slots = fast.compute_slot_mapping(int32([[-1, 4]]), int32([0, 2]), POSITIONS[:2], 2)
    assert slots.tolist() == [-1, 8]


@pytest.mark.usefixtures("path")
def test_slots_past_int32() -> None:
    """A slot is an int64, whatever the block."""
    table = int32([[2**31 - 1]])
    positions = torch.tensor([2**31 - 2])
    slots = fast.compute_slot_mapping(table, int32([0, 1]), positions, 2**31 - 1)
    assert slots.tolist() == [(2**31 - 1) ** 2 + 2**31 - 2]


@pytest.mark.usefixtures("path")
def test_positions_past_32_bits() -> None:
    """A position may need more than 32 bits, on one rank or on two."""
    table, starts, size = torch.arange(10).int()[None], int32([0, 1]), 2**29 + 2
    slots = fast.compute_slot_mapping(table, starts, torch.tensor([9 * size + 2**28 + 3]), size)
    assert [9 * size + 2**28 + 3] == slots.tolist()
    position, ranks = torch.tensor([9 * 2 * size + 2**28 + 3]), {"cp_world_size": 2, "cp_rank": 1}
    slots = fast.compute_slot_mapping(
        table, starts, position, size, **ranks, cp_kv_cache_interleave_size=2
    )
    assert [9 * size + 2**27 + 1] == slots.tolist()


@pytest.mark.usefixtures("path")
def test_nothing_to_do() -> None:
    """Empty batches, and empty tables, are no trouble."""
    nothing = torch.zeros(0, dtype=torch.int64)
    assert fast.compute_slot_mapping(TABLE[:0], int32([0]), nothing, 2).shape == (0,)
    assert fast.compute_slot_mapping(TABLE[:, :0], int32([0, 0]), POSITIONS, 2).tolist() == [-1] * 4
    out = torch.zeros(3, dtype=torch.int64)
    fast.compute_slot_mapping(TABLE, int32([0]), nothing, 2, out=out)
    assert out.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("table", "starts", "positions", "message"),
    [
        (TABLE, [1, 3, 4], [1, 2, 3, 0], r"query_start_loc\[0\] is 1, expected 0"),
        (TABLE, [0, 3, 2], [1, 2, 3, 0], r"query_start_loc\[2\] is 2, less than 3"),
        (TABLE, [0, 3, 5], [1, 2, 3, 0], r"query_start_loc\[-1\] is 5, but positions has 4"),
        (TABLE, [0, 3, 4], [1, -2, 3, 0], r"positions\[1\] is -2, expected at least 0"),
        (TABLE, [0, 3, 4], [1, 2, 3, 4], r"positions\[3\] is 4 and needs column 2.* has 2 columns"),
        (-TABLE, [0, 3, 4], [1, 2, 3, 0], r"block_table\[0, 0\] is -5, expected at least 0"),
    ],
)
def test_checked(
    table: torch.Tensor, starts: list[int], positions: list[int], message: str
) -> None:
    """Checked mode tells of the value at fault, and writes nothing."""
    out = torch.full((4,), -3)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=message):
        fast.compute_slot_mapping(table, int32(starts), torch.tensor(positions), 2, out=out)
    assert out.tolist() == [-3] * 4


def test_checked_leaves_padding_alone() -> None:
    """What stands behind the last token is never looked at."""
    positions = torch.tensor([1, 2, 3, 0, -7, 2**40])
    with fast.checks(enabled=True):
        slots = fast.compute_slot_mapping(TABLE, STARTS, positions, 2)
    assert slots.tolist() == [11, 18, 19, 14, -1, -1]


def test_too_many_tokens_on_the_host() -> None:
    """On the host one value is read in any mode: tokens without a position."""
    with fast.checks(enabled=False), pytest.raises(ValueError, match="positions has 3 entries"):
        fast.compute_slot_mapping(TABLE, STARTS, POSITIONS[:3], 2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_table": TABLE.long()}, TypeError, "^block_table must be int32, got int64"),
        ({"block_table": TABLE[0]}, ValueError, "block_table must have 2 dimensions"),
        ({"block_table": TABLE[:1]}, ValueError, "^query_start_loc has 2 requests, but block_ta"),
        ({"query_start_loc": STARTS[:0]}, ValueError, "query_start_loc is empty"),
        ({"query_start_loc": STARTS.numpy()}, TypeError, "query_start_loc must be a torch tensor"),
        ({"positions": STARTS}, TypeError, "^positions must be int64, got int32"),
        ({"positions": POSITIONS.to("meta")}, ValueError, "positions must be on the CPU, got meta"),
        ({"block_size": 0}, ValueError, "block_size is 0"),
        ({"block_size": 3, "kernel_block_size": 2}, ValueError, "^kernel_block_size is 2, expec"),
        ({"kernel_block_size": True}, TypeError, "kernel_block_size must be an int"),
        ({"cp_rank": 1}, ValueError, "cp_rank is 1, expected 0 to 0"),
        ({"cp_kv_cache_interleave_size": 4}, ValueError, "^cp_kv_cache_interleave_size is 4, ex"),
        ({"cp_world_size": 2**30}, ValueError, "block_size 2 times cp_world_size 1073741824"),
        ({"out": POSITIONS[:3].clone()}, ValueError, "out has 3 entries, expected at least 4"),
        ({"out": torch.zeros(5)}, TypeError, "^out must be int64, got float32"),
        ({"out": torch.zeros(1, dtype=torch.int64).expand(5)}, ValueError, "out is one element"),
    ],
)
def test_refuses_in_any_mode(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    """What costs O(1) is checked without checked mode too."""
    arguments = {
        "block_table": TABLE,
        "query_start_loc": STARTS,
        "positions": POSITIONS,
        "block_size": 2,
        **changes,
    }
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        fast.compute_slot_mapping(**arguments)


def test_out_that_is_an_input() -> None:
    """In checked mode an `out` that shares an element with an input is refused."""
    both = torch.zeros(8, dtype=torch.int64)
    with fast.checks(enabled=True):
        with pytest.raises(ValueError, match="out shares memory with an input"):
            fast.compute_slot_mapping(TABLE, STARTS, both[:4], 2, out=both[3:7])
        slots = fast.compute_slot_mapping(TABLE, STARTS, both[0::2], 2, out=both[1::2])
    assert slots.tolist() == [10, 10, 10, 14]


@pytest.mark.parametrize("shape", [(4,), (3, 5), (0, 3), (2, 1)])
def test_flat_holds_a_view(shape: tuple[int, ...]) -> None:
    """Stepping through the flat memory by the view's strides gives the view."""
    view = torch.arange(100).view(10, 10)[2:, 3:][tuple(slice(n) for n in shape)]
    line = flat(view)
    assert line.is_contiguous()
    places = np.array(list(np.ndindex(*view.shape)), dtype=np.int64).reshape(-1, view.dim())
    indices = torch.from_numpy(places @ np.array(view.stride(), dtype=np.int64))
    assert torch.equal(view.reshape(-1), line[indices])


@pytest.mark.usefixtures("path")
def test_positions_that_wrap_around() -> None:
    """Positions one behind another past 2**63 are not taken for a run: nothing else is read."""
    most = 2**63 - 1
    positions = torch.tensor([most, -most - 1, -most])
    table = int32([[5, 9], [77, 88]])[:1]
    assert [-1] * 3 == fast.compute_slot_mapping(table, int32([0, 3]), positions, 1).tolist()
    tables = fast.BlockTables([1], 1, 4, 4, "cpu", pin_memory=False)
    tables.append_block_ids([0], [[0, 1]], [[7]], [True])
    tables.gather_block_tables(int32([0]))
    assert [[-1] * 3] == tables.compute_slot_mappings(int32([0, 3]), positions).tolist()


def test_tensors_without_memory_are_refused() -> None:
    """A meta tensor, or one whose storage was taken from it, is named: no loop reads there."""
    meta = [TABLE.to("meta"), STARTS.to("meta"), POSITIONS.to("meta")]
    with pytest.raises(ValueError, match="block_table must be on the CPU, got meta"):
        fast.compute_slot_mapping(*meta, 2)
    with pytest.raises(ValueError, match="seq_lens must be on the CPU, got meta"):
        fast.get_dcp_local_seq_lens(STARTS.to("meta"))
    emptied = POSITIONS.clone()
    emptied.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="positions has no memory: it is on cpu, with no storage"):
        fast.compute_slot_mapping(TABLE, STARTS, emptied, 2)
