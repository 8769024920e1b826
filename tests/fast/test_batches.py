"""What `fast` does with a batch beyond its answers: memory that it may not touch, or need not.

With checks off, values that `reference` refuses never lead outside the arrays.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fast
from fast import make_kv_sharing_fast_prefill_common_attn_metadata as fast_prefill_metadata
from fast import make_local_attention_virtual_batches as make_virtual
from fast._native.ubatch import write_requests, write_requests_of_int64
from fast.launch import simulated_by
from tests.fast.conftest import int32

Make = Callable[..., fast.CommonAttentionMetadata]

OUTSIDE = 10**6
"""The value of memory that no call may read or write."""


def inside(values: torch.Tensor) -> torch.Tensor:
    """Return a strided view of these values in a tensor whose other elements are `OUTSIDE`."""
    around = torch.full([2 * n + 3 for n in values.shape], OUTSIDE, dtype=values.dtype)
    view = around[tuple(slice(2, 2 * n + 1, 2) for n in values.shape)]
    return view.copy_(values)


BLOCKS = int32([[1, 2], [3, 4]])
BAD_STARTS = [
    *([0, -5, 4], [3, 3, 4], [0, 9, 4], [-7, -7, 4], [4, 2, 1], [0, 2**31 - 1, 4], [-9, -9, -9]),
    [-4, -1, 0],
]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("starts", BAD_STARTS)
def test_slots_of_bad_starts(starts: list[int]) -> None:
    table, out = inside(BLOCKS), inside(torch.full((4,), -3))
    positions = torch.tensor([1, 2, 3, 0])
    slots = fast.compute_slot_mapping(table, int32(starts), positions, 2, out=out)
    assert all(-1 <= slot < OUTSIDE for slot in slots.tolist())
    assert out.as_strided((11,), (1,), 0)[1::2].tolist() == [OUTSIDE] * 5


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seq_lens", [[-5, 3], [1, 2**31 - 1], [0, 0], [-(2**31), 900]])
@pytest.mark.parametrize("starts", [[0, 4, 4], [-4, -1, 0], [2**31 - 5, 2**31 - 5, 2**31 - 1]])
def test_virtual_batches_of_bad_lengths(seq_lens: list[int], starts: list[int]) -> None:
    batch = SimpleNamespace(
        query_start_loc=int32(starts),
        query_start_loc_cpu=int32(starts),
        seq_lens=int32(seq_lens),
        seq_lens_cpu=int32(seq_lens),
        num_reqs=2,
        num_actual_tokens=4,
        block_table_tensor=inside(BLOCKS),
        slot_mapping=torch.arange(4),
    )
    local = make_virtual(2**30, batch, 2**28)
    assert set(local.block_table_tensor.reshape(-1).tolist()) <= {1, 2, 3, 4}


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("indices", [[9, 2, 27], [-5, 10**6, 3], [2**40, -(2**40), 2**31]])
def test_fast_prefill_of_bad_indices(make_batch: Make, indices: list[int]) -> None:
    batch = make_batch([15, 5, 8], [0, 4, 22])
    batch.logits_indices_padded = torch.tensor([*indices, 0, 0])
    batch.num_logits_indices = len(indices)
    starts = fast_prefill_metadata(batch).query_start_loc.tolist()
    assert 0 == starts[0]
    assert all(0 <= start <= 3 for start in starts)


@pytest.mark.usefixtures("path")
def test_programs_of_a_wrong_copy() -> None:
    starts = int32([0, 8 * 3000, 8 * 3001])
    compute = fast.compute_causal_conv1d_metadata
    _, batch_ptr, _ = compute(starts, query_start_loc_p_cpu=int32([0, 8, 16]))
    assert 2048 == len(batch_ptr)
    _, batch_ptr, _ = compute(int32([9, 0, 8]), query_start_loc_p_cpu=int32([0, 8, 16]))
    assert set(batch_ptr.tolist()) <= {-1, 0, 1}


@pytest.mark.parametrize("max_blocks", [1, 2, 3, 5])
def test_blocks_of_programs_that_take_several_sequences(
    max_blocks: int, simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = torch.cumsum(torch.tensor([0, 3, 0, 70, 8, 1, 0, 33]), 0).int()
    _, *expected = fast.compute_causal_conv1d_metadata(starts)
    monkeypatch.setattr("fast.causal_conv1d.MAX_BLOCKS", max_blocks)
    with simulated_by(simulate, threads=4):
        _, *found = fast.compute_causal_conv1d_metadata(starts)
    assert all(map(torch.equal, expected, found))


def test_too_many_tokens_on_the_host() -> None:
    with pytest.raises(ValueError, match="positions has 3 entries"):
        fast.compute_slot_mapping(BLOCKS, int32([0, 3, 4]), torch.arange(3), 2)


def test_no_request_is_looked_for_behind_the_last() -> None:
    for write in (write_requests, write_requests_of_int64):
        counts, bounds = np.array([2, 1, 100, 100]), np.zeros(2, np.int64)
        write(counts[:2], np.array([0, 50]), bounds)
        assert bounds.tolist() == [0, 2]


@pytest.mark.parametrize("checked", [False, True])
def test_devices_are_checked_in_both_modes(make_batch: Make, *, checked: bool) -> None:
    batch, elsewhere = make_batch([3], [0]), int32([1, 2]).to("meta")
    batch.logits_indices_padded, batch.num_logits_indices = int32([1, 2]), 2
    with fast.checks(checked), pytest.raises(ValueError, match="_cpu is on meta, expected cpu"):
        fast_prefill_metadata(batch, logits_indices_cpu=elsewhere)
    batch.logits_indices_padded = elsewhere
    with fast.checks(checked), pytest.raises(ValueError, match="logits_indices_padded is on meta"):
        fast_prefill_metadata(batch)


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


def test_virtual_batches_on_a_device_need_no_scratch(make_batch: Make) -> None:
    num_reqs, chunk = 1024, 8192
    batch = make_batch([1] * num_reqs, [5000] * num_reqs)
    with simulated_by(lambda *_: None), Allocations() as made:
        table = make_virtual(chunk, batch, 16).block_table_tensor
    assert (num_reqs, chunk // 16) == table.shape
    given = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    for tensor in given:
        made.storages.pop(tensor.untyped_storage().data_ptr(), None)
    new = [tensor.untyped_storage().nbytes() for tensor in made.storages.values()]
    assert sum(new) <= table.nbytes + 2**16


def test_a_plan_hands_out_its_views_again(step: dict[str, Any]) -> None:
    names = ("num_reqs", "num_tokens", "block_tables", "slot_mappings")
    num_reqs, num_tokens, tables, slots = (step.pop(name) for name in names)
    plan = fast.AttnMetadataPlan(**step)
    recorder = step["attn_metadata_builders"][0]

    def build(num_tokens: int) -> fast.CommonAttentionMetadata:
        plan.build(num_reqs, num_tokens, tuple(tables), slots)
        return recorder.given[-1][1]  # type: ignore[no-any-return]

    first, second = build(num_tokens), build(num_tokens)
    assert first is not second
    assert first.seq_lens is second.seq_lens
    with fast.checks(True):
        assert first.seq_lens is not build(num_tokens).seq_lens
    slots[:] = [torch.zeros(99, dtype=torch.int64)] * 2
    for tokens in range(3, 90):  # it keeps views of 64 sizes
        build(tokens)
    assert first.seq_lens is not build(num_tokens).seq_lens


def test_a_plan_reads_no_memory_that_is_gone(step: dict[str, Any]) -> None:
    names = ("num_reqs", "num_tokens", "block_tables", "slot_mappings")
    of_step, lens = {name: step.pop(name) for name in names}, torch.tensor([6, 1, 0]).int()
    step["seq_lens"] = SimpleNamespace(cpu=lens, gpu=lens)
    plan = fast.AttnMetadataPlan(**step)
    plan.build(**of_step)
    lens.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"seq_lens\.cpu has no memory"):
        plan.build(**of_step)


def test_no_lengths_are_read_if_both_bounds_are_given(
    step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fast.metadata.find_maxima", None)
    fast.build_attn_metadata(**step, max_query_len=1, max_seq_len=0)
    batch = step["attn_metadata_builders"][0].given[0][1]
    assert (1, 0) == (batch.max_query_len, batch.max_seq_len)
