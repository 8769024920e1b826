import pytest
import torch

import fast
from fast import get_dcp_local_seq_lens


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("interleave", [1, 2, 5])
def test_counts_positions(size: int, interleave: int) -> None:
    """On both paths a rank's length is the number of its positions."""
    lengths = list(range(25))
    expected = [
        [sum(p // interleave % size == rank for p in range(s)) for rank in range(size)]
        for s in lengths
    ]
    table = get_dcp_local_seq_lens(int32(lengths), size, None, interleave)
    assert expected == table.tolist()
    assert table.dtype == torch.int32
    for rank in range(size):
        column = get_dcp_local_seq_lens(int32(lengths), size, rank, interleave)
        assert torch.equal(table[:, rank], column)


@pytest.mark.usefixtures("path")
def test_greatest_lengths() -> None:
    """Nothing overflows on the way, whatever the sizes."""
    longest = 2**31 - 1
    lengths = int32([longest])
    assert get_dcp_local_seq_lens(lengths, 1, 0, longest).tolist() == [longest]
    assert get_dcp_local_seq_lens(lengths, 2**30, 2**30 - 1, 1).tolist() == [1]
    assert get_dcp_local_seq_lens(lengths, 2, 1, 2**30 - 1).tolist() == [2**30 - 1]


@pytest.mark.usefixtures("path")
def test_strided_and_empty() -> None:
    """Views are read where they stand, and no sequences have no lengths."""
    assert get_dcp_local_seq_lens(int32([5, 99, 8])[::2], 2, 0, 2).tolist() == [3, 4]
    assert get_dcp_local_seq_lens(int32([]), 2).shape == (0, 2)
    assert get_dcp_local_seq_lens(int32([]), 2, 1).shape == (0,)


def test_one_rank_is_a_copy() -> None:
    """The result is new memory even when nothing changes."""
    lengths = int32([5, 8])
    local = get_dcp_local_seq_lens(lengths, 1, 0)
    assert local.tolist() == [5, 8]
    assert local.data_ptr() != lengths.data_ptr()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "dcp_size is 0"),
        ((2, 2), ValueError, "dcp_rank is 2, expected 0 to 1"),
        ((2, -1), ValueError, "dcp_rank is -1"),
        ((2, True), TypeError, "dcp_rank must be an int"),
        ((2, 0, 0), ValueError, "cp_kv_cache_interleave_size is 0"),
        ((2, 0, 2**30), ValueError, "dcp_size 2 times cp_kv_cache_interleave_size 1073741824"),
    ],
)
def test_refuses(arguments: tuple[int, ...], error: type[Exception], message: str) -> None:
    """Sizes are checked in any mode."""
    with fast.checks(enabled=False), pytest.raises(error, match=message):
        get_dcp_local_seq_lens(int32([1]), *arguments)


def test_lengths_are_checked_in_checked_mode() -> None:
    """A negative length is found only where values are read."""
    with fast.checks(enabled=False):
        get_dcp_local_seq_lens(int32([3, -1]), 2)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"seq_lens\[1\] is -1"):
        get_dcp_local_seq_lens(int32([3, -1]), 2)
    with pytest.raises(TypeError, match=r"^seq_lens must be int32, got int64"):
        get_dcp_local_seq_lens(torch.tensor([3]), 2)
