from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import make_kv_sharing_fast_prefill_common_attn_metadata as fast_prefill_metadata
from fast.launch import simulated_by
from tests.fast.conftest import int32

Make = Callable[..., fast.CommonAttentionMetadata]


def armed(make_batch: Make, indices: list[int], query_lens: tuple[int, ...] = (15, 5, 8)) -> Any:  # noqa: ANN401  # a batch
    """Make a batch with logits for some tokens, with padding after the indices."""
    batch = make_batch(list(query_lens), [0, 4, 22, 1][: len(query_lens)])
    batch.logits_indices_padded = torch.tensor([*indices, 0, 0])
    batch.num_logits_indices = len(indices)
    return batch


@pytest.mark.usefixtures("path")
def test_a_copy_on_the_cpu(make_batch: Make) -> None:
    batch, copy = armed(make_batch, [14, 18, 19, 27]), int32([14, 18, 19, 27])
    with fast.checks(enabled=True):
        result = fast_prefill_metadata(batch, logits_indices_cpu=copy)
    assert [0, 1, 3, 4] == result.query_start_loc.tolist() == result.query_start_loc_cpu.tolist()
    assert (2, 4) == (result.max_query_len, result.num_actual_tokens)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("indices", [[9, 2, 27], [-5, 10**6, 3], [2**40, -(2**40), 2**31]])
def test_bad_indices_unchecked(make_batch: Make, indices: list[int]) -> None:
    result = fast_prefill_metadata(armed(make_batch, indices))
    assert 0 == result.query_start_loc[0]
    assert all(0 <= start <= 3 for start in result.query_start_loc.tolist())


@pytest.mark.parametrize("checked", [False, True])
def test_devices_are_checked_in_both_modes(make_batch: Make, *, checked: bool) -> None:
    batch, elsewhere = armed(make_batch, [1, 2], (3,)), int32([1, 2]).to("meta")
    with fast.checks(checked), pytest.raises(ValueError, match="_cpu is on meta, expected cpu"):
        fast_prefill_metadata(batch, logits_indices_cpu=elsewhere)
    batch.logits_indices_padded = elsewhere
    with fast.checks(checked), pytest.raises(ValueError, match="logits_indices_padded is on meta"):
        fast_prefill_metadata(batch)


def test_wrong_starts_with_indices_on_another_device(make_batch: Make) -> None:
    batch = armed(make_batch, [1, 2], (3,))
    batch.logits_indices_padded, batch.query_start_loc = int32([1, 2]).to("meta"), None
    with pytest.raises(TypeError, match="query_start_loc must be a"):
        fast_prefill_metadata(batch)
    batch.query_start_loc = int32([0])
    with fast.checks(enabled=True), pytest.raises(ValueError, match="query_start_loc_cpu has 2"):
        fast_prefill_metadata(batch)


def test_lengths_in_any_mode(make_batch: Make, simulate: Callable[..., None]) -> None:
    batch = armed(make_batch, [1])
    batch.query_start_loc_cpu = int32([0, 15])
    with pytest.raises(ValueError, match="query_start_loc_cpu has 2 entries, expected 4"):
        fast_prefill_metadata(batch)
    batch = armed(make_batch, [1])
    batch.query_start_loc = int32([0, 15])
    with (
        simulated_by(simulate, threads=4),
        pytest.raises(ValueError, match="query_start_loc has 2 entries, expected 4"),
    ):
        fast_prefill_metadata(batch)


def test_kernels_are_given_python_ints(make_batch: Make) -> None:
    given: list[tuple[object, ...]] = []

    def launch(*launched: Any) -> None:  # noqa: ANN401  # a launch
        given.append(launched[3])
        launched[3][-1].zero_()

    batch = armed(make_batch, [1, 16])
    batch.num_reqs, batch.num_logits_indices = np.int32(3), np.int64(2)
    with simulated_by(launch, threads=4):
        fast_prefill_metadata(batch)
    assert {int} == {type(arg) for args in given for arg in args if not torch.is_tensor(arg)}
    batch.num_reqs = 3.0
    with pytest.raises(TypeError, match=r"num_reqs must be an int, got 3\.0"):
        fast_prefill_metadata(batch)
