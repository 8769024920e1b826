from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fast
from fast import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)

Make = Callable[..., fast.CommonAttentionMetadata]


class Batch:
    """An input batch that records its swaps."""

    def __init__(self, computed: list[int], prompts: list[int] | None = None) -> None:
        self.req_ids = [f"r{i}" for i in range(len(computed))]
        self.num_computed_tokens_cpu = np.array(computed, dtype=np.int32)
        self.num_prompt_tokens = np.array(prompts or computed, dtype=np.int64)
        self.swaps: list[tuple[int, int]] = []

    def swap_states(self, i: int, j: int) -> None:
        """Swap two positions."""
        assert type(i) is type(j) is int
        assert i != j
        self.swaps.append((i, j))
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for array in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            array[[i, j]] = array[[j, i]]


def scheduled(tokens: list[Any]) -> SimpleNamespace:
    """Return a scheduler's output."""
    return SimpleNamespace(num_scheduled_tokens={f"r{i}": n for i, n in enumerate(tokens)})


@pytest.mark.parametrize(
    ("query_lens", "threshold", "uniform", "expected"),
    [
        ([1, 1, 1, 7], 1, False, (3, 1, 3, 7)),
        ([2, 1, 3, 9], 3, False, (3, 1, 6, 9)),
        ([2, 1, 3, 9], 3, True, (1, 3, 2, 13)),
        ([2, 2, 0, 0], 3, True, (4, 0, 4, 0)),
        ([0, 2, 0, 2, 1], 3, True, (4, 1, 4, 1)),
        ([9, 1], 1, False, (0, 2, 0, 10)),
        ([], 1, True, (0, 0, 0, 0)),
    ],
)
def test_split_in_two(
    query_lens: list[int],
    threshold: int,
    uniform: bool,
    expected: tuple[int, ...],
    make_batch: Make,
) -> None:
    """The boundary is where the definition puts it, and counts are Python's ints."""
    batch = make_batch(query_lens, [5] * len(query_lens))
    result = split_decodes_and_prefills(batch, threshold, require_uniform=uniform)
    assert expected == result
    assert {type(count) for count in result} == {int}


def test_padding_goes_with_the_last_kind(make_batch: Make) -> None:
    """Tokens behind the last request belong to the last kind that has requests."""
    prefills = make_batch([1, 4, 4], [3, 2, 0], num_actual_tokens=12)
    assert split_decodes_and_prefills(prefills) == (1, 2, 1, 11)
    assert split_decodes_prefills_and_extends(prefills) == (1, 1, 1, 1, 4, 7)
    extends = make_batch([1, 4], [3, 2], num_actual_tokens=12)
    assert split_decodes_prefills_and_extends(extends) == (1, 1, 0, 1, 11, 0)
    nothing = make_batch([], [], num_actual_tokens=3)
    assert split_decodes_prefills_and_extends(nothing) == (0, 0, 0, 3, 0, 0)


@pytest.mark.parametrize("split", [split_decodes_and_prefills, split_decodes_prefills_and_extends])
def test_split_reads_a_metadata_of_any_class(split: Callable[..., Any], make_batch: Make) -> None:
    """An engine's own object serves, strided and with NumPy's ints; what it lacks it is told."""
    own = SimpleNamespace(
        query_start_loc_cpu=torch.tensor([0, 9, 1, 9, 5], dtype=torch.int32)[::2],
        num_computed_tokens_cpu=torch.tensor([3, 9, 0], dtype=torch.int32)[::2],
        num_reqs=np.int64(2),
        num_actual_tokens=np.int32(5),
    )
    result = split(own)
    assert result == split(make_batch([1, 4], [3, 0]))
    assert {type(count) for count in result} == {int}
    del own.query_start_loc_cpu
    with pytest.raises(AttributeError, match="query_start_loc_cpu"):
        split(own)


@pytest.mark.parametrize("split", [split_decodes_and_prefills, split_decodes_prefills_and_extends])
def test_split_refuses(split: Callable[..., Any], make_batch: Make) -> None:
    """O(1) checks are made in any mode, the batch's own in checked mode."""
    with pytest.raises(ValueError, match="decode_threshold is 0"):
        split(make_batch([1], [3]), 0)
    with pytest.raises(ValueError, match="query_start_loc_cpu has 2 entries, expected 3"):
        split(make_batch([1], [3], num_reqs=2))
    batch = make_batch([1], [3], max_seq_len=3)
    with fast.checks(enabled=False):
        assert sum(split(batch)) == 2
    with fast.checks(enabled=True), pytest.raises(ValueError, match="max_seq_len is 3"):
        split(batch)


@pytest.mark.parametrize("split", [split_decodes_and_prefills, split_decodes_prefills_and_extends])
def test_fewer_than_no_requests(split: Callable[..., Any]) -> None:
    """A negative number of requests does not fit starts that are empty."""
    nothing = torch.empty(0, dtype=torch.int32)
    own = SimpleNamespace(
        query_start_loc_cpu=nothing,
        num_computed_tokens_cpu=nothing,
        num_reqs=-1,
        num_actual_tokens=0,
    )
    with fast.checks(enabled=False), pytest.raises(ValueError, match="-1"):
        split(own)


def test_uniform_is_a_bool(make_batch: Make) -> None:
    """`require_uniform` is not an int."""
    with pytest.raises(TypeError, match="require_uniform must be a bool"):
        split_decodes_and_prefills(make_batch([1], [3]), 1, 1)  # type: ignore[arg-type]  # that is it


@pytest.mark.parametrize(
    ("computed", "tokens", "order"),
    [
        ([0, 7, 3, 4], [9, 1, 5, 1], "3 1 2 0"),
        ([3, 2, 0], [1, 4, 8], "0 1 2"),
        ([0, 0, 5, 5, 5, 5], [9, 9, 9, 9, 1, 1], "4 5 2 3 0 1"),
        ([0, 5, 5], [9, 9, 1], "2 1 0"),
        ([0, 5, 5], [9, 1, 9], "1 2 0"),
        ([], [], ""),
    ],
)
def test_reorders_with_few_swaps(computed: list[int], tokens: list[int], order: str) -> None:
    """Misplaced requests fill the free positions; no swap is spent on those that stay."""
    batch = Batch(computed)
    expected = [f"r{i}" for i in order.split()]
    moved = reorder_batch_to_split_decodes_and_prefills(batch, scheduled(tokens))
    assert expected == batch.req_ids
    assert moved is (batch.swaps != [])
    misplaced = sum(f"r{i}" != req_id for i, req_id in enumerate(expected))
    assert len(batch.swaps) <= max(0, misplaced - 1)


def test_four_regions() -> None:
    """Short extends stand behind the decodes, and prefills are those without computed tokens."""
    batch = Batch([0, 4, 2, 8, 0], [9, 9, 9, 8, 1])
    output = scheduled([1, 5, 1, 1, 9])
    assert reorder_batch_to_split_decodes_and_prefills(batch, output, regions=4) is True
    assert batch.req_ids == ["r3", "r2", "r1", "r0", "r4"]
    assert reorder_batch_to_split_decodes_and_prefills(batch, output, regions=4) is False


def test_arrays_may_be_longer() -> None:
    """An engine's arrays have room for more requests than there are."""
    batch = Batch([0, 7, 9])
    batch.req_ids.pop()
    assert reorder_batch_to_split_decodes_and_prefills(batch, scheduled([9, 1]))
    assert batch.req_ids == ["r1", "r0"]


def test_reads_read_only_arrays() -> None:
    """Arrays are read, whatever their order and rights."""
    batch = Batch([0, 7])
    frozen = np.array([0, -9, 7, -9])[::2]
    frozen.flags.writeable = False
    batch.num_computed_tokens_cpu = frozen
    batch.swap_states = lambda i, j: batch.swaps.append((i, j))  # type: ignore[method-assign]  # a frozen array cannot be swapped
    assert reorder_batch_to_split_decodes_and_prefills(batch, scheduled([9, 1]))
    assert len(batch.swaps) == 1


@pytest.mark.parametrize(
    ("changes", "tokens", "error", "message"),
    [
        ({}, [9], KeyError, "num_scheduled_tokens has no request 'r1'"),
        (
            {},
            [9, None],
            TypeError,
            r"num_scheduled_tokens of req_ids\[1\] must be an int, got None",
        ),
        (
            {},
            [9, True],
            TypeError,
            r"num_scheduled_tokens of req_ids\[1\] must be an int, got True",
        ),
        ({}, [9, -1], ValueError, r"num_scheduled_tokens of req_ids\[1\] is -1"),
        ({"req_ids": ("r0", "r1")}, [9, 1], TypeError, "req_ids must be a list"),
        (
            {"num_computed_tokens_cpu": np.array([1])},
            [9, 1],
            ValueError,
            "num_computed_tokens_cpu has 1 entries, expected at least 2",
        ),
        (
            {"num_computed_tokens_cpu": [1, 0]},
            [9, 1],
            TypeError,
            "^num_computed_tokens_cpu must be an array, got list",
        ),
        (
            {"num_computed_tokens_cpu": np.ma.MaskedArray([1, 0], mask=False)},
            [9, 1],
            TypeError,
            "num_computed_tokens_cpu must be a NumPy array, got MaskedArray",
        ),
        (
            {"num_prompt_tokens": np.zeros(2)},
            [9, 1],
            TypeError,
            "num_prompt_tokens must be int32 or int64",
        ),
        (
            {"num_computed_tokens_cpu": np.array([0, -1])},
            [9, 1],
            ValueError,
            r"num_computed_tokens_cpu\[1\] is -1",
        ),
    ],
)
def test_reorder_refuses(
    changes: dict[str, Any], tokens: list[Any], error: type[Exception], message: str
) -> None:
    """Everything is checked before the first swap."""
    batch = Batch([0, 7])
    vars(batch).update(changes)
    with fast.checks(enabled=True), pytest.raises(error, match=message):
        reorder_batch_to_split_decodes_and_prefills(batch, scheduled(tokens), regions=4)
    assert batch.swaps == []


def test_regions_are_three_or_four() -> None:
    """There are two orders."""
    with pytest.raises(ValueError, match="regions is 2, expected 3 to 4"):
        reorder_batch_to_split_decodes_and_prefills(Batch([]), scheduled([]), regions=2)


def test_asking_inserts_nothing() -> None:
    """A mapping that makes entries when asked is left as it is."""
    from collections import defaultdict  # noqa: PLC0415  (this test's alone)

    counts = defaultdict(int, {"r0": 1})
    with pytest.raises(KeyError, match="r1"):
        reorder_batch_to_split_decodes_and_prefills(
            Batch([0, 7]), SimpleNamespace(num_scheduled_tokens=counts)
        )
    assert counts == {"r0": 1}
