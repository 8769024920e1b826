import pytest
import torch

import fast


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    """The result has the ids' dtype, and the ids stay as they are."""
    ids = torch.tensor([[0, 3]], dtype=dtype)
    result = fast.map_to_kernel_blocks(ids, 2)
    assert result.dtype == dtype
    assert result.tolist() == [[0, 1, 6, 7]]
    assert ids.tolist() == [[0, 3]]


def test_one_in_one_is_a_copy() -> None:
    """The result is a new tensor even when nothing changes."""
    ids = torch.tensor([4, 2])
    assert fast.map_to_kernel_blocks(ids, 1).data_ptr() != ids.data_ptr()


def test_strided() -> None:
    """Views are read where they stand."""
    ids = torch.arange(12, dtype=torch.int32).view(3, 4).T[::2]
    assert fast.map_to_kernel_blocks(ids, 2).tolist() == [
        [0, 1, 8, 9, 16, 17],
        [4, 5, 12, 13, 20, 21],
    ]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2)])
def test_no_ids(shape: tuple[int, ...]) -> None:
    """Without ids any number of kernel blocks will do, and none is made."""
    ids = torch.zeros(shape, dtype=torch.int8)
    assert fast.map_to_kernel_blocks(ids, 2**31 - 1).shape == (*shape[:-1], shape[-1] * (2**31 - 1))


def test_greatest_result() -> None:
    """The last kernel block may be the greatest that the dtype holds, and no greater."""
    with fast.checks(enabled=True):
        assert fast.map_to_kernel_blocks(torch.tensor([63], dtype=torch.int8), 2)[-1] == 127
        last = torch.tensor([2**63 - 1])
        assert fast.map_to_kernel_blocks(last, 1).tolist() == [2**63 - 1]
        with pytest.raises(ValueError, match=r"block_ids\[1\] is 64, expected 0 to 63"):
            fast.map_to_kernel_blocks(torch.tensor([63, 64], dtype=torch.int8), 2)
        with pytest.raises(ValueError, match=r"block_ids\[1, 0\] is -1, expected 0 to 63"):
            fast.map_to_kernel_blocks(torch.tensor([[1, 2], [-1, 2]], dtype=torch.int8), 2)


def test_refuses() -> None:
    """What is wrong is told with its name."""
    ids = torch.tensor([1], dtype=torch.int8)
    with pytest.raises(TypeError, match=r"^block_ids must be an array, got list"):
        fast.map_to_kernel_blocks([1], 2)  # type: ignore[arg-type]  # that is the test
    with pytest.raises(
        TypeError, match="block_ids must be int8 or int16 or int32 or int64 or uint8"
    ):
        fast.map_to_kernel_blocks(ids.float(), 2)
    with pytest.raises(ValueError, match="block_ids must have at least 1 dimension"):
        fast.map_to_kernel_blocks(ids[0], 2)
    with pytest.raises(ValueError, match="blocks_per_kv_block is 0"):
        fast.map_to_kernel_blocks(ids, 0)
    with pytest.raises(ValueError, match=r"blocks_per_kv_block is 200, more than int8 can"):
        fast.map_to_kernel_blocks(ids, 200)
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"block_ids\[0\] is -1"):
        fast.map_to_kernel_blocks(-ids, 2)
