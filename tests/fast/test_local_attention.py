from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fast
from fast import make_local_attention_virtual_batches as make_virtual
from fast.launch import simulated_by
from tests.fast.conftest import int32

Make = Callable[..., fast.CommonAttentionMetadata]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seq_lens", [[-5, 3], [1, 2**31 - 1], [0, 0], [-(2**31), 900]])
@pytest.mark.parametrize("starts", [[0, 4, 4], [-4, -1, 0], [2**31 - 5, 2**31 - 5, 2**31 - 1]])
def test_bad_batches_unchecked(seq_lens: list[int], starts: list[int]) -> None:
    local = make_virtual(2**30, bad_batch(starts, seq_lens), 2**28)
    assert set(local.block_table_tensor.reshape(-1).tolist()) <= {1, 2, 3, 4}


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seq_lens", [[-5, 3], [1, 2**31 - 1], [2**31 - 1] * 2])
@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 4, 2], r"query_start_loc_cpu\[2\] is 2, less than 4 before it"),
        ([0, -9, 9], r"query_start_loc_cpu\[1\] is -9, less than 0 before it"),
        ([0, 2**31 - 1, 0], r"query_start_loc_cpu\[2\] is 0, less than 2147483647 before it"),
        ([5, 5, 2**31 - 1], r"query_start_loc_cpu\[0\] is 5, expected 0"),
        ([0, 0, 5], r"query_start_loc_cpu\[-1\] is 5, more than num_actual_tokens 4"),
    ],
)
def test_starts_that_contradict_the_tokens(
    seq_lens: list[int], starts: list[int], message: str
) -> None:
    with fast.checks(enabled=False), pytest.raises(ValueError, match=message):
        make_virtual(1, bad_batch(starts, seq_lens), 1)


def bad_batch(starts: list[int], seq_lens: list[int]) -> SimpleNamespace:
    """Return a batch of two requests and 4 tokens, whose blocks are 1 to 4."""
    around = torch.full((8, 8), 10**6, dtype=torch.int32)
    table = around[2:6:2, 2:6:2].copy_(torch.tensor([[1, 2], [3, 4]]))
    return SimpleNamespace(
        query_start_loc=int32(starts),
        query_start_loc_cpu=int32(starts),
        seq_lens=int32(seq_lens),
        seq_lens_cpu=int32(seq_lens),
        num_reqs=2,
        num_actual_tokens=4,
        block_table_tensor=table,
        slot_mapping=torch.arange(4),
    )


class Allocations(TorchDispatchMode):
    """Records the storages of all tensors that are made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        """Call an operator, and record the storage of its result."""
        del types
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            self.storages[result.untyped_storage().data_ptr()] = result
        return result


def test_the_device_path_needs_no_scratch(make_batch: Make) -> None:
    num_reqs, chunk = 1024, 8192
    batch = make_batch([1] * num_reqs, [5000] * num_reqs)
    with simulated_by(lambda *_: None), Allocations() as made:
        local = make_virtual(chunk, batch, 16)
    table = local.block_table_tensor
    assert (num_reqs, chunk // 16) == table.shape
    from_batch = {
        tensor.untyped_storage().data_ptr()
        for tensor in vars(batch).values()
        if isinstance(tensor, torch.Tensor)
    }
    new = [made.storages[at].untyped_storage().nbytes() for at in made.storages.keys() - from_batch]
    assert sum(new) <= table.nbytes + 2**16
