"""Where tokens stand in the cache: `compute_slot_mapping` and `map_to_kernel_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import PAD_SLOT_ID, compute_slot_mapping, map_to_kernel_blocks

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)

TABLE = [[5, 9], [7, 3]]
STARTS = [0, 3, 4]
POSITIONS = [1, 2, 3, 0]


def slots_of(
    table: list[list[int]], starts: list[int], positions: list[int], *args: object, **kwargs: object
) -> list[int]:
    """Compute slots from lists, to a list."""
    slots = compute_slot_mapping(
        np.array(table, np.int32),
        np.array(starts, np.int32),
        np.array(positions, np.int64),
        *args,
        **kwargs,
    )
    assert slots.dtype == np.int64
    assert isinstance(slots.tolist(), list)
    return slots.tolist()


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        pytest.param({}, [11, 18, 19, 14], id="one rank"),
        pytest.param({"cp_world_size": 2, "cp_rank": 1}, [10, -1, 11, -1], id="rank 1 of 2"),
        pytest.param({"cp_world_size": 2, "cp_rank": 0}, [-1, 11, -1, 14], id="rank 0 of 2"),
        pytest.param(
            {"kernel_block_size": 2}, [11, 18, 19, 14], id="kernel blocks of the same size"
        ),
        pytest.param(
            {"cp_kv_cache_interleave_size": 2}, [11, 18, 19, 14], id="one rank, interleave"
        ),
        pytest.param(
            {"cp_world_size": 2, "cp_rank": 0, "cp_kv_cache_interleave_size": 2},
            [11, -1, -1, 14],
            id="rank 0 of 2, interleave 2",
        ),
        pytest.param(
            {"cp_world_size": 2, "cp_rank": 1, "cp_kv_cache_interleave_size": 2},
            [-1, 10, 11, -1],
            id="rank 1 of 2, interleave 2",
        ),
    ],
)
def test_slots_of_the_example(kwargs: dict[str, int], expected: list[int]) -> None:
    """The worked example, and what its ranks hold."""
    assert expected == slots_of(TABLE, STARTS, POSITIONS, 2, **kwargs)


def test_kernel_blocks() -> None:
    """Block k of the row is kernel blocks k*n .. k*n + n - 1, wherever these are in the cache."""
    table = [[8, 3, 6, 1]]  # two blocks of 4, as kernel blocks of 2
    expected = [16, 17, 6, 7, 12, 13, 2, 3]
    assert expected == slots_of(table, [0, 8], list(range(8)), 4, kernel_block_size=2)


def test_kernel_blocks_with_context_parallelism() -> None:
    """The rank, the block and the offset follow from the manager's block, not the kernel's."""
    table = [[8, 3, 6, 1]]
    world = {"kernel_block_size": 2, "cp_world_size": 2, "cp_kv_cache_interleave_size": 2}
    positions = list(range(16))
    pad = PAD_SLOT_ID
    rank_0 = [16, 17, pad, pad, 6, 7, pad, pad, 12, 13, pad, pad, 2, 3, pad, pad]
    rank_1 = [pad, pad, 16, 17, pad, pad, 6, 7, pad, pad, 12, 13, pad, pad, 2, 3]
    assert rank_0 == slots_of(table, [0, 16], positions, 4, **world, cp_rank=0)
    assert rank_1 == slots_of(table, [0, 16], positions, 4, **world, cp_rank=1)


@pytest.mark.parametrize(
    ("starts", "positions", "expected"),
    [
        pytest.param([0], [], [], id="no requests"),
        pytest.param([0], [-7, 99], [-1, -1], id="padding alone, never looked at"),
        pytest.param([0, 0, 0], [], [], id="requests of no tokens"),
        pytest.param([0, 1, 1], [3, -7, 99], [19, -1, -1], id="padding behind"),
        pytest.param([0, 1], [3], [19], id="more rows than requests"),
        pytest.param([0, 4], [3, 0, 0, 2], [19, 10, 10, 18], id="positions in any order"),
    ],
)
def test_padding(starts: list[int], positions: list[int], expected: list[int]) -> None:
    """Tokens past the last request have no slot; requests may have none."""
    assert expected == slots_of(TABLE, starts, positions, 2)


def test_slots_pass_32_bits() -> None:
    """A block id near 2^31 gives a slot far past it."""
    greatest = 2**31 - 1
    assert [greatest * 128 + 127] == slots_of([[greatest]], [0, 1], [127], 128)
    assert [greatest * greatest + 5] == slots_of([[greatest]], [0, 1], [5], greatest)


def test_numpy_integers_are_ints() -> None:
    """A narrow NumPy integer as a size does not overflow."""
    assert [300 * 100] == slots_of([[0, 300]], [0, 1], [100], np.int8(100))


def test_strided_arrays() -> None:
    """Inputs and out may be strided views; what lies between their entries is left alone."""
    table = np.full((4, 4), 99, np.int32)
    table[::2, ::2] = TABLE
    starts = np.full(6, 99, np.int32)
    starts[::2] = STARTS
    positions = np.full(8, 99, np.int64)
    positions[::2] = POSITIONS
    buffer = np.full(12, 77, np.int64)
    slots = compute_slot_mapping(table[::2, ::2], starts[::2], positions[::2], 2, out=buffer[::2])
    assert [11, 18, 19, 14] == slots.tolist()
    assert [11, 77, 18, 77, 19, 77, 14, 77, -1, 77, -1, 77] == buffer.tolist()
    assert np.shares_memory(slots, buffer)


def test_out_between_the_entries_of_an_input() -> None:
    """What interleaves with an input but shares no byte with it is no overlap."""
    both = np.full(8, 77, np.int64)
    both[::2] = POSITIONS
    table, starts = np.array(TABLE, np.int32), np.array(STARTS, np.int32)
    compute_slot_mapping(table, starts, both[::2], 2, out=both[1::2])
    assert [1, 11, 2, 18, 3, 19, 0, 14] == both.tolist()


def test_out_of_one_entry() -> None:
    """One entry shares no memory with another, whatever its stride is said to be."""
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (1,), (0,))
    starts = np.array([0, 1], np.int32)
    compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([1]), 2, out=out)
    assert [11] == out.tolist()


@pytest.mark.parametrize("stride", [-7, 0, 7])
def test_out_of_two_entries_that_overlap(stride: int) -> None:
    """Two entries that share a byte are refused, whichever way the second one lies."""
    memory = np.zeros(4, np.int64)
    out = np.lib.stride_tricks.as_strided(memory[1:], (2,), (stride,))
    starts = np.array([0, 1], np.int32)
    with pytest.raises(ValueError, match=r"^out is one element repeated"):
        compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([1]), 2, out=out)
    assert [0] * 4 == memory.tolist()


def test_out_backwards() -> None:
    """A stride may be negative."""
    out = np.full(3, 77, np.int64)
    starts = np.array([0, 2], np.int32)
    compute_slot_mapping(np.array([[5]], np.int32), starts, np.array([0, 1]), 2, out=out[::-1])
    assert [-1, 11, 10] == out.tolist()


def test_out_is_padded_to_its_end() -> None:
    """With out, everything past the positions is padding, and the result is a view of it."""
    out = np.full(7, 77, np.int64)
    table, starts = np.array(TABLE, np.int32), np.array(STARTS, np.int32)
    slots = compute_slot_mapping(table, starts, np.array([*POSITIONS, 50]), 2, out=out)
    assert [11, 18, 19, 14, -1, -1, -1] == out.tolist()
    assert [11, 18, 19, 14, -1] == slots.tolist()
    assert slots.base is out


def test_a_column_that_is_not_read_may_be_bad() -> None:
    """Only the entries that hold a token of this rank are looked at."""
    assert [10, 15] == slots_of([[5, -1], [7, -9]], [0, 1, 2], [0, 1], 2)
    assert [-1] == slots_of([[5]], [0, 1], [99], 2, cp_world_size=2, cp_rank=0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"block_size": 0}, ValueError, "block_size is 0, expected 1 to 2147483647"),
        (
            {"block_size": 2**31},
            ValueError,
            "block_size is 2147483648, expected 1 to 2147483647",
        ),
        ({"block_size": True}, TypeError, "block_size must be an int, got True of bool"),
        ({"block_size": 2.0}, TypeError, "block_size must be an int, got 2.0 of float"),
        (
            {"kernel_block_size": 3},
            ValueError,
            "kernel_block_size is 3, expected a divisor of block_size 2",
        ),
        (
            {"kernel_block_size": 4},
            ValueError,
            "kernel_block_size is 4, expected a divisor of block_size 2",
        ),
        ({"cp_world_size": 0}, ValueError, "cp_world_size is 0, expected 1 to 2147483647"),
        ({"cp_rank": 1}, ValueError, "cp_rank is 1, expected 0 to 0"),
        ({"cp_rank": -1}, ValueError, "cp_rank is -1, expected 0 to 0"),
        (
            {"cp_world_size": 2**30},
            ValueError,
            (
                "block_size 2 times cp_world_size 1073741824 is 2147483648, expected at "
                "most 2147483647"
            ),
        ),
        (
            {"cp_kv_cache_interleave_size": 4},
            ValueError,
            "cp_kv_cache_interleave_size is 4, expected a divisor of block_size 2",
        ),
        (
            {"query_start_loc": np.array([0, 3, 4])},
            TypeError,
            "query_start_loc must be int32, got int64",
        ),
        (
            {"query_start_loc": np.array([1, 3, 4], np.int32)},
            ValueError,
            "query_start_loc[0] is 1, expected 0",
        ),
        (
            {"query_start_loc": np.array([0, 3, 2], np.int32)},
            ValueError,
            "query_start_loc[2] is 2, less than 3 before it",
        ),
        (
            {"query_start_loc": np.array([0, -1, 4], np.int32)},
            ValueError,
            "query_start_loc[1] is -1, less than 0 before it",
        ),
        (
            {"query_start_loc": np.array([], np.int32)},
            ValueError,
            "query_start_loc is empty, expected num_reqs + 1 entries",
        ),
        (
            {"query_start_loc": np.array([0, 3, 5], np.int32)},
            ValueError,
            "query_start_loc[-1] is 5, but positions has 4 entries",
        ),
        (
            {"query_start_loc": np.array([0, 3, 4, 4], np.int32)},
            ValueError,
            "query_start_loc has 3 requests, but block_table has 2 rows",
        ),
        (
            {"positions": np.array(POSITIONS, np.int32)},
            TypeError,
            "positions must be int64, got int32",
        ),
        ({"positions": POSITIONS}, TypeError, "positions must be an array, got list"),
        (
            {"positions": np.array([POSITIONS])},
            ValueError,
            "positions must have 1 dimension, got shape (1, 4)",
        ),
        (
            {"positions": np.array([1, 2, -1, 0])},
            ValueError,
            "positions[2] is -1, expected at least 0",
        ),
        (
            {"positions": np.array([1, 2, -2, 0]), "cp_world_size": 2},
            ValueError,
            "positions[2] is -2, expected at least 0",
        ),
        (
            {"positions": np.array([1, 2, 4, 0])},
            ValueError,
            "positions[2] is 4 and needs column 2, but block_table has 2 columns",
        ),
        (
            {"block_table": np.array(TABLE)},
            TypeError,
            "block_table must be int32, got int64",
        ),
        (
            {"block_table": np.array([[5, 9], [-1, 3]], np.int32)},
            ValueError,
            "block_table[1, 0] is -1, expected at least 0, as it holds positions[3]",
        ),
        ({"out": np.zeros(3, np.int64)}, ValueError, "out has 3 entries, expected at least 4"),
        ({"out": np.zeros(4, np.int32)}, TypeError, "out must be int64, got int32"),
        (
            {"out": np.broadcast_to(np.int64(0), 4)},
            ValueError,
            "out is one element repeated, expected one for each token",
        ),
        (
            {"out": np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (4,), (0,))},
            ValueError,
            "out is one element repeated, expected one for each token",
        ),
    ],
)
def test_refusals_of_slots(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """Each precondition broken in turn is refused, in these words, and out is not written."""
    out = np.full(4, 77, np.int64)
    kwargs: dict[str, Any] = {
        "block_table": np.array(TABLE, np.int32),
        "query_start_loc": np.array(STARTS, np.int32),
        "positions": np.array(POSITIONS, np.int64),
        "block_size": 2,
        "out": out,
    }
    with pytest.raises(error) as caught:
        compute_slot_mapping(**(kwargs | changes))
    assert message == str(caught.value)
    assert [77] * 4 == out.tolist()


def test_out_that_is_an_input() -> None:
    """Slots are not written over what they are computed from."""
    positions = np.array(POSITIONS, np.int64)
    table, starts = np.array(TABLE, np.int32), np.array(STARTS, np.int32)
    with pytest.raises(
        ValueError, match=r"^out shares memory with an input, expected memory of its"
    ):
        compute_slot_mapping(table, starts, positions, 2, out=positions)
    memory = np.zeros(8, np.int64)
    memory.view(np.int32)[:4] = np.ravel(TABLE)
    table = memory.view(np.int32)[:4].reshape(2, 2)
    with pytest.raises(
        ValueError, match=r"^out shares memory with an input, expected memory of its"
    ):
        compute_slot_mapping(table, starts, positions, 2, out=memory[1:])
    assert POSITIONS == positions.tolist()
    assert TABLE == table.tolist()


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, int]:
    """Draw block sizes that fit together."""
    interleave = draw(st.sampled_from([1, 2]))
    kernel_block_size = draw(st.sampled_from([1, 2, 4]))
    least = max(interleave, kernel_block_size)
    return {
        "block_size": least * draw(st.sampled_from([1, 2, 3])),
        "kernel_block_size": kernel_block_size,
        "cp_world_size": draw(st.integers(1, 4)),
        "cp_kv_cache_interleave_size": interleave,
    }


@given(world=worlds(), length=st.integers(1, 40), shift=st.integers(0, 2**31 - 200))
@EXAMPLES
def test_each_position_has_one_rank_and_one_slot(
    world: dict[str, int], length: int, shift: int
) -> None:
    """Of a sequence's positions each is on one rank; on a rank no two share a slot."""
    table = [[shift + 3 * column for column in range(length)]]
    positions = list(range(length))
    holders = [0] * length
    for rank in range(world["cp_world_size"]):
        slots = slots_of(table, [0, length], positions, **world, cp_rank=rank)
        held = [slot for slot in slots if slot != PAD_SLOT_ID]
        assert len(held) == len(set(held))
        assert {slot // world["kernel_block_size"] for slot in held} <= set(table[0])
        holders = [n + (slot != PAD_SLOT_ID) for n, slot in zip(holders, slots, strict=True)]
    assert [1] * length == holders


@given(world=worlds(), length=st.integers(1, 40), rank=st.integers(0, 3))
@EXAMPLES
def test_kernel_blocks_of_one_block_keep_its_slots(
    world: dict[str, int], length: int, rank: int
) -> None:
    """A table of whole blocks, and the same one as kernel blocks, give the same slots."""
    rank %= world["cp_world_size"]
    table = np.array([[5 * column + 2 for column in range(length)]], np.int32)
    kernel_table = map_to_kernel_blocks(table, world["block_size"] // world["kernel_block_size"])
    positions = list(range(length))
    in_kernel_blocks = slots_of(
        kernel_table.tolist(), [0, length], positions, **world, cp_rank=rank
    )
    world = world | {"kernel_block_size": world["block_size"]}
    assert in_kernel_blocks == slots_of(
        table.tolist(), [0, length], positions, **world, cp_rank=rank
    )


def test_map_of_the_example() -> None:
    """The worked example, for every dtype."""
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8):
        result = map_to_kernel_blocks(np.array([0, 3], dtype), 2)
        assert [0, 1, 6, 7] == result.tolist()
        assert dtype == result.dtype


@pytest.mark.parametrize(
    ("shape", "n", "expected_shape"),
    [((0,), 3, (0,)), ((2, 3), 2, (2, 6)), ((2, 0, 3), 4, (2, 0, 12)), ((2, 0), 4, (2, 0))],
)
def test_map_shapes(shape: tuple[int, ...], n: int, expected_shape: tuple[int, ...]) -> None:
    """Only the last dimension grows."""
    assert expected_shape == map_to_kernel_blocks(np.zeros(shape, np.int32), n).shape


def test_map_of_rows() -> None:
    """Each row is mapped by itself, strided or not; with one kernel block it is copied."""
    block_ids = np.array([[1, 9, 0], [2, 9, 3]], np.int32)[:, ::2]
    assert [[2, 3, 0, 1], [4, 5, 6, 7]] == map_to_kernel_blocks(block_ids, 2).tolist()
    same = map_to_kernel_blocks(block_ids, 1)
    assert block_ids.tolist() == same.tolist()
    assert not np.shares_memory(same, block_ids)


def test_map_to_the_edge_of_the_dtype() -> None:
    """The greatest id that fits is mapped; one more is refused."""
    assert [126, 127] == map_to_kernel_blocks(np.array([63], np.int8), 2).tolist()
    last = 2**62 - 1
    assert [2 * last, 2 * last + 1] == map_to_kernel_blocks(np.array([last]), 2).tolist()


@pytest.mark.parametrize(
    ("block_ids", "n", "error", "message"),
    [
        (
            np.array([[0], [42]], np.int8),
            3,
            ValueError,
            ("block_ids[1, 0] is 42, expected 0 to 41, as each is 3 kernel blocks in int8"),
        ),
        (
            np.array([0, -1]),
            2,
            ValueError,
            (
                "block_ids[1] is -1, expected 0 to "
                "4611686018427387903, as each is 2 kernel "
                "blocks in int64"
            ),
        ),
        (
            np.array(3),
            2,
            ValueError,
            "block_ids must have at least 1 dimension, got shape ()",
        ),
        (
            np.array([0], np.uint16),
            2,
            TypeError,
            "block_ids must be int8 or int16 or int32 or int64 or uint8, got uint16",
        ),
        ([0, 3], 2, TypeError, "block_ids must be an array, got list"),
        (np.array([0]), 0, ValueError, "blocks_per_kv_block is 0, expected 1 to 2147483647"),
        (
            np.array([0]),
            None,
            TypeError,
            "blocks_per_kv_block must be an int, got None of NoneType",
        ),
    ],
)
def test_refusals_of_the_map(
    block_ids: object, n: object, error: type[Exception], message: str
) -> None:
    """Each precondition broken in turn is refused, in these words."""
    with pytest.raises(error) as caught:
        map_to_kernel_blocks(block_ids, n)
    assert message == str(caught.value)


@given(
    ids=st.lists(st.integers(0, 1000), max_size=6, unique=True),
    n=st.integers(1, 5),
)
@EXAMPLES
def test_map_is_one_to_one(ids: list[int], n: int) -> None:
    """Distinct blocks have distinct kernel blocks, each of which leads back to its block."""
    mapped = map_to_kernel_blocks(np.array(ids, np.int64), n).tolist()
    assert len(mapped) == len(set(mapped)) == n * len(ids)
    assert [block_id for block_id in ids for _ in range(n)] == [kernel // n for kernel in mapped]
