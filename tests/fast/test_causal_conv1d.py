from collections.abc import Callable

import pytest
import torch

import fast
from fast import compute_causal_conv1d_metadata as compute
from fast.launch import simulated_by
from tests.fast.conftest import int32


@pytest.mark.usefixtures("path")
def test_a_copy_on_the_cpu() -> None:
    starts = int32([0, 9, 9, 25])
    with fast.checks(enabled=True):
        (lists, *pointers), (copied, *copied_pointers) = (
            compute(starts, query_start_loc_p_cpu=copy) for copy in (None, starts.clone())
        )
    assert (lists[8]["tot"], lists[8]["mlist_len"]) == (copied[8]["tot"], copied[8]["mlist_len"])
    of_lists = [(lists[8][name], copied[8][name]) for name in ("nums", "mlist", "offsetlist")]
    for expected, found in (*of_lists, *zip(pointers, copied_pointers, strict=True)):
        assert expected.dtype == found.dtype
        assert torch.equal(expected, found)


def test_results_are_new() -> None:
    starts = int32([0, 9])
    first, second = compute(starts), compute(starts)
    for tensor in (first[1], first[2], first[0][8]["nums"], first[0][8]["mlist"]):
        tensor.fill_(7)
    assert [2] == second[0][8]["nums"].tolist()
    assert [0, 0, -1] == second[1][:3].tolist()
    assert [0, 1] == first[0][8]["offsetlist"].tolist()


@pytest.mark.parametrize("max_blocks", [1, 2, 3, 5])
def test_blocks_of_several_sequences(
    max_blocks: int, simulate: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = torch.cumsum(torch.tensor([0, 3, 0, 70, 8, 1, 0, 33]), 0).int()
    expected = compute(starts)
    monkeypatch.setattr("fast.causal_conv1d.MAX_BLOCKS", max_blocks)
    with simulated_by(simulate, threads=4):
        found = compute(starts)
    assert torch.equal(expected[1], found[1])
    assert torch.equal(expected[2], found[2])


@pytest.mark.usefixtures("path")
def test_a_wrong_copy_unchecked() -> None:
    starts = int32([0, 8 * 3000, 8 * 3001])
    _, batch_ptr, _ = compute(starts, query_start_loc_p_cpu=int32([0, 8, 16]))
    assert 2048 == len(batch_ptr)
    _, batch_ptr, _ = compute(int32([9, 0, 8]), query_start_loc_p_cpu=int32([0, 8, 16]))
    assert set(batch_ptr.tolist()) <= {-1, 0, 1}


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 2, 1], r"less than .* before it"),
        ([0, 2**31 - 1, 0, 2**31 - 1], r"less than .* before it"),
        ([0, -(2**31), 2**31 - 1] * 9, r"less than .* before it"),
        ([-3, 5], r"\[0\] is -3, expected 0"),
    ],
)
def test_bad_starts_unchecked(starts: list[int], message: str) -> None:
    with fast.checks(enabled=False), pytest.raises(ValueError, match=message):
        compute(int32(starts))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("starts", "total"), [([5], 0), ([5, 5], 0), ([5, 13], 1)])
def test_a_first_start_other_than_0_unchecked(starts: list[int], total: int) -> None:
    with fast.checks(enabled=False):
        assert total == compute(int32(starts))[0][8]["tot"]
    with fast.checks(enabled=True), pytest.raises(ValueError, match=r"\[0\] is 5, expected 0"):
        compute(int32(starts))
