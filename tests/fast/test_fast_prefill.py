import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import make_kv_sharing_fast_prefill_common_attn_metadata as fast_prefill_metadata
from fast.launch import simulated_by

Make = Callable[..., fast.CommonAttentionMetadata]


def int32(values: list[int]) -> torch.Tensor:
    """Return an int32 tensor."""
    return torch.tensor(values, dtype=torch.int32)


def armed(make_batch: Make, indices: list[int], query_lens: tuple[int, ...] = (15, 5, 8)) -> Any:  # noqa: ANN401  # a batch
    """Make a batch with logits for some tokens, with padding after the indices."""
    batch = make_batch(list(query_lens), [0, 4, 22, 1][: len(query_lens)])
    batch.logits_indices_padded = torch.tensor([*indices, 0, 0])
    batch.num_logits_indices = len(indices)
    return batch


@pytest.mark.usefixtures("path")
def test_a_copy_on_the_cpu(make_batch: Make) -> None:
    """On both paths a copy of the indices gives the same starts as the indices alone."""
    batch, copy = armed(make_batch, [14, 18, 19, 27]), int32([14, 18, 19, 27])
    with fast.checks(enabled=True):
        result = fast_prefill_metadata(batch, logits_indices_cpu=copy)
    assert [0, 1, 3, 4] == result.query_start_loc.tolist() == result.query_start_loc_cpu.tolist()
    assert (2, 4) == (result.max_query_len, result.num_actual_tokens)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("indices", [[9, 2, 27], [-5, 10**6, 3], [2**40, -(2**40), 2**31]])
def test_bad_indices_unchecked(make_batch: Make, indices: list[int]) -> None:
    """Whatever they are, nothing is read or written outside."""
    result = fast_prefill_metadata(armed(make_batch, indices))
    assert 0 == result.query_start_loc[0]
    assert all(0 <= start <= 3 for start in result.query_start_loc.tolist())


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("changes", "copy", "error", "message"),
    [
        ({"logits_indices_padded": int32([1, 2]).to("meta")}, None, ValueError, "is on meta"),
        ({}, int32([1]), ValueError, "logits_indices_cpu has 1 entries, expected at least"),
        ({}, [1, 2], TypeError, "^logits_indices_cpu must be an array, got list"),
        ({}, int32([1, 2]).to("meta"), ValueError, "logits_indices_cpu must be on the CPU"),
    ],
)
def test_refused(
    make_batch: Make,
    changes: dict[str, Any],
    copy: torch.Tensor | None,
    error: type[Exception],
    message: str,
    *,
    checked: bool,
) -> None:
    """Types, dtypes, lengths and devices are checked in both modes."""
    batch = dataclasses.replace(armed(make_batch, [1, 2], (3,)), **changes)
    with fast.checks(checked), pytest.raises(error, match=message):
        fast_prefill_metadata(batch, logits_indices_cpu=copy)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("indices", "copy", "message"),
    [
        ([1, 3], [1, 4], r"logits_indices_cpu\[1\] is 4, but logits_indices_padded\[1\] is 3"),
    ],
)
def test_checked(
    make_batch: Make, indices: list[int], copy: list[int] | None, message: str
) -> None:
    """In checked mode indices increase and are tokens of requests, and their copy is equal."""
    with fast.checks(enabled=True), pytest.raises(ValueError, match=message):
        fast_prefill_metadata(
            armed(make_batch, indices), logits_indices_cpu=None if copy is None else int32(copy)
        )


def test_lengths_in_any_mode(make_batch: Make, simulate: Callable[..., None]) -> None:
    """Starts of another length than the batch are refused before a kernel reads past their end."""
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
    """A NumPy int would be passed to a kernel in its own width, not as the int64 that it takes."""
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
