"""The order of a batch by kind: where it is split, and how it is brought about."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import (
    CommonAttentionMetadata,
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)

BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]

EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("query_lens", "threshold", "uniform", "expected"),
    [
        ([1, 1, 1, 7], 1, False, (3, 1, 3, 7)),
        ([2, 1, 3, 9], 3, False, (3, 1, 6, 9)),
        ([2, 1, 3, 9], 3, True, (1, 3, 2, 13)),
        ([2, 2, 0, 0], 3, True, (4, 0, 4, 0)),
        ([9, 1], 1, False, (0, 2, 0, 10)),
        ([1, 5, 1], 1, False, (1, 2, 1, 6)),
        ([], 1, False, (0, 0, 0, 0)),
        ([0, 0], 1, True, (2, 0, 0, 0)),
        ([0, 2, 0, 2, 3], 3, True, (4, 1, 4, 3)),
        ([0, 9], 3, True, (1, 1, 0, 9)),
        ([4, 4], 3, True, (0, 2, 0, 8)),
        ([3, 3, 0, 3], 3, True, (4, 0, 9, 0)),
        ([3, 3, 0, 4, 0], 3, False, (3, 2, 6, 4)),
    ],
)
def test_split_in_two(
    make_batch: BatchMaker,
    query_lens: list[int],
    threshold: int,
    uniform: bool,
    expected: tuple[int, ...],
) -> None:
    """The worked examples, and batches with requests of zero tokens anywhere."""
    batch = make_batch(query_lens, [5] * len(query_lens))
    counts = split_decodes_and_prefills(batch, threshold, uniform)
    assert expected == counts
    assert {int} == {type(count) for count in counts}


def test_padding_tokens_go_with_the_last_kind(make_batch: BatchMaker) -> None:
    """Tokens past the last request count with the prefills, or the decodes if there are none."""
    assert (1, 1, 1, 11) == split_decodes_and_prefills(make_batch([1, 8], [4, 0], padding_tokens=3))
    assert (2, 0, 5, 0) == split_decodes_and_prefills(make_batch([1, 1], [4, 5], padding_tokens=3))


@pytest.mark.parametrize(
    ("query_lens", "computed", "threshold", "padding", "expected"),
    [
        ([1, 1, 4, 7], [3, 5, 2, 0], 1, 0, (2, 1, 1, 2, 4, 7)),
        ([1, 1], [3, 5], 1, 0, (2, 0, 0, 2, 0, 0)),
        ([4, 5], [3, 5], 1, 0, (0, 2, 0, 0, 9, 0)),
        ([4, 5], [0, 0], 1, 0, (0, 0, 2, 0, 0, 9)),
        ([], [], 1, 0, (0, 0, 0, 0, 0, 0)),
        ([], [], 1, 4, (0, 0, 0, 4, 0, 0)),
        ([1, 1], [3, 5], 1, 4, (2, 0, 0, 6, 0, 0)),
        ([1, 4], [3, 5], 1, 4, (1, 1, 0, 1, 8, 0)),
        ([1, 4, 9], [3, 5, 0], 1, 4, (1, 1, 1, 1, 4, 13)),
        ([2, 3, 4], [0, 0, 0], 3, 0, (2, 0, 1, 5, 0, 4)),
        ([1, 9, 1, 9], [3, 0, 4, 5], 1, 0, (1, 0, 3, 1, 0, 19)),
        ([4, 1, 9, 0], [3, 0, 0, 0], 1, 0, (0, 2, 2, 0, 5, 9)),
    ],
)
def test_split_in_three(  # a parameter for each column
    make_batch: BatchMaker,
    query_lens: list[int],
    computed: list[int],
    threshold: int,
    padding: int,
    expected: tuple[int, ...],
) -> None:
    """Each kind may be absent; padding goes with the last one that has requests."""
    batch = make_batch(query_lens, computed, padding_tokens=padding)
    counts = split_decodes_prefills_and_extends(batch, threshold)
    assert expected == counts
    assert {int} == {type(count) for count in counts}


@given(
    requests=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=8),
    threshold=st.integers(1, 5),
    uniform=st.booleans(),
    padding=st.integers(0, 3),
)
@EXAMPLES
def test_splits_lose_nothing(
    make_batch: BatchMaker,
    requests: list[tuple[int, int]],
    threshold: int,
    uniform: bool,
    padding: int,
) -> None:
    """Requests and tokens sum to the batch's; each decode is short, and the next request is not."""
    query_lens, computed = [q for q, _ in requests], [c for _, c in requests]
    batch = make_batch(query_lens, computed, padding_tokens=padding)
    num_decodes, num_prefills, *tokens = split_decodes_and_prefills(batch, threshold, uniform)
    assert len(requests) == num_decodes + num_prefills
    assert batch.num_actual_tokens == sum(tokens)
    decode_lens = set(query_lens[:num_decodes]) - {0}
    assert max(decode_lens, default=0) <= threshold
    assert not uniform or len(decode_lens) <= 1
    if num_prefills:
        assert query_lens[num_decodes] > threshold or uniform
    counts = split_decodes_prefills_and_extends(batch, threshold)
    assert len(requests) == sum(counts[:3])
    assert batch.num_actual_tokens == sum(counts[3:])
    if not uniform:
        assert num_decodes == counts[0]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"decode_threshold": 0},
            ValueError,
            "decode_threshold is 0, expected 1 to 2147483647",
        ),
        (
            {"decode_threshold": 1.0},
            TypeError,
            "decode_threshold must be an int, got 1.0 of float",
        ),
    ],
)
def test_refusals_of_thresholds(
    make_batch: BatchMaker, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A threshold that cannot be is refused by all three functions, in these words."""
    batch = make_batch([1], [1])
    for call in (
        lambda: split_decodes_and_prefills(batch, **kwargs),
        lambda: split_decodes_prefills_and_extends(batch, **kwargs),
        lambda: reorder(Batch(["a"], [0]), [1], **kwargs),
    ):
        with pytest.raises(error) as caught:
            call()
        assert message == str(caught.value)


def test_refusals_of_splits(make_batch: BatchMaker) -> None:
    """The flag must be a bool, and the batch valid."""
    batch = make_batch([1], [1])
    with pytest.raises(TypeError, match=r"^require_uniform must be a bool, got 1 of int$"):
        split_decodes_and_prefills(batch, 1, 1)
    batch.num_reqs = 2
    for split in (split_decodes_and_prefills, split_decodes_prefills_and_extends):
        with pytest.raises(ValueError, match=r"^query_start_loc has 2 entries, expected num_reqs"):
            split(batch)


def test_an_engine_s_own_metadata() -> None:
    """Only what is read must be there; what is not there and read is an AttributeError."""
    own = SimpleNamespace(
        num_reqs=2, num_actual_tokens=5, query_start_loc=np.array([0, 1, 5], np.int32)
    )
    assert (1, 1, 1, 4) == split_decodes_and_prefills(own)
    with pytest.raises(AttributeError, match="num_computed_tokens_cpu"):
        split_decodes_prefills_and_extends(own)


class Batch:
    """An engine's batch that counts its swaps."""

    def __init__(
        self,
        req_ids: list[str],
        computed: list[int],
        prompts: list[int] | None = None,
        dtype: type[Any] = np.int32,
    ) -> None:
        """Take the state by position."""
        self.req_ids = req_ids
        self.num_computed_tokens_cpu = np.array(computed, dtype)
        if prompts is not None:
            self.num_prompt_tokens = np.array(prompts, dtype)
        self.swaps: list[tuple[int, int]] = []

    def swap_states(self, i: int, j: int) -> None:
        """Swap all of two positions' state."""
        assert type(i) is type(j) is int
        self.swaps.append((i, j))
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        arrays = [self.num_computed_tokens_cpu]
        arrays += [self.num_prompt_tokens] if hasattr(self, "num_prompt_tokens") else []
        for array in arrays:
            array[[i, j]] = array[[j, i]]


def reorder(batch: Batch, tokens: list[int], **kwargs: object) -> bool:
    """Reorder a batch whose requests have these tokens."""
    scheduled = dict(zip(batch.req_ids, tokens, strict=True))
    step = SimpleNamespace(num_scheduled_tokens=scheduled)
    return reorder_batch_to_split_decodes_and_prefills(batch, step, **kwargs)


@pytest.mark.parametrize(
    ("ids", "tokens", "computed", "threshold", "expected", "num_swaps"),
    [
        ("abcd", [9, 1, 5, 1], [0, 7, 3, 4], 1, "dbca", 1),
        ("abc", [1, 4, 8], [3, 2, 0], 1, "abc", 0),
        ("", [], [], 1, "", 0),
        ("a", [9], [0], 1, "a", 0),
        ("abc", [9, 5, 1], [0, 3, 3], 1, "cba", 1),
        ("abc", [9, 1, 5], [0, 3, 3], 1, "bca", 2),
        ("abcd", [9, 8, 1, 1], [0, 0, 3, 3], 1, "cdab", 2),
        ("abcd", [3, 8, 2, 0], [0, 0, 0, 3], 3, "adcb", 1),
        ("abcde", [9, 1, 1, 8, 1], [0, 3, 3, 0, 3], 1, "ebcda", 1),
    ],
)
def test_reorder(  # a parameter for each column
    ids: str,
    tokens: list[int],
    computed: list[int],
    threshold: int,
    expected: str,
    num_swaps: int,
) -> None:
    """The worked examples: what stands right stays, the others fill the free places in order."""
    for dtype in (np.int32, np.int64):
        batch = Batch(list(ids), list(computed), dtype=dtype)
        moved = reorder(batch, tokens, decode_threshold=threshold)
        assert moved is (ids != expected)
        assert expected == "".join(batch.req_ids)
        assert num_swaps == len(batch.swaps)


def test_reorder_into_four_regions() -> None:
    """With four regions a short extend is no decode, and a short prefill is a prefill."""
    batch = Batch(list("fedcba"), [0, 0, 9, 4, 9, 12], [3, 20, 20, 8, 9, 10])
    tokens = [2, 11, 11, 1, 1, 2]
    assert reorder(batch, tokens, decode_threshold=2, regions=4)
    # f and e have no computed tokens; d is long; c is within its prompt; b and a are past it
    assert ["b", "a", "c", "d", "f", "e"] == batch.req_ids


def test_three_regions_read_no_prompts() -> None:
    """The prompts are read with four regions only; then they must be there."""
    batch = Batch(["a"], [0])
    assert not reorder(batch, [5])
    with pytest.raises(AttributeError, match="num_prompt_tokens"):
        reorder(batch, [5], regions=4)


def test_arrays_may_be_longer_than_the_batch() -> None:
    """An engine's arrays have room for more requests; what stands past these is not read."""
    batch = Batch(["a", "b"], [0, 3, -7, -7])
    assert reorder(batch, [9, 1])
    assert ["b", "a"] == batch.req_ids


@pytest.mark.parametrize(
    ("changes", "scheduled", "regions", "error", "message"),
    [
        (
            {},
            {"a": 9},
            3,
            KeyError,
            "num_scheduled_tokens has no request 'b', which is req_ids[1]",
        ),
        (
            {},
            {"a": 9, "b": -1},
            3,
            ValueError,
            "num_scheduled_tokens of req_ids[1] is -1, expected 0 to 9223372036854775807",
        ),
        (
            {},
            {"a": 9, "b": 1.0},
            3,
            TypeError,
            "num_scheduled_tokens of req_ids[1] must be an int, got 1.0 of float",
        ),
        ({"req_ids": ("a", "b")}, {}, 3, TypeError, "req_ids must be a list, got tuple"),
        (
            {"num_computed_tokens_cpu": np.array([0])},
            {"a": 9, "b": 1},
            3,
            ValueError,
            "num_computed_tokens_cpu has 1 entries, expected at least 2",
        ),
        (
            {"num_computed_tokens_cpu": np.array([0, -3])},
            {"a": 9, "b": 1},
            3,
            ValueError,
            "num_computed_tokens_cpu[1] is -3, expected at least 0",
        ),
        (
            {"num_computed_tokens_cpu": np.array([0.0, 3.0])},
            {"a": 9, "b": 1},
            3,
            TypeError,
            "num_computed_tokens_cpu must be int32 or int64, got float64",
        ),
        (
            {"num_prompt_tokens": np.array([9])},
            {"a": 9, "b": 1},
            4,
            ValueError,
            "num_prompt_tokens has 1 entries, expected at least 2",
        ),
        ({}, {"a": 9, "b": 1}, 5, ValueError, "regions is 5, expected 3 to 4"),
        ({}, {"a": 9, "b": 1}, True, TypeError, "regions must be an int, got True of bool"),
    ],
)
def test_refusals_of_reorder(
    changes: dict[str, Any],
    scheduled: dict[str, Any],
    regions: object,
    error: type[Exception],
    message: str,
) -> None:
    """Each precondition broken in turn is refused, in these words, and nothing has moved."""
    batch = Batch(["a", "b"], [0, 3], [9, 2])
    for name, value in changes.items():
        setattr(batch, name, value)
    step = SimpleNamespace(num_scheduled_tokens=scheduled)
    with pytest.raises(error) as caught:
        reorder_batch_to_split_decodes_and_prefills(batch, step, regions=regions)
    assert message == caught.value.args[0]
    assert [] == batch.swaps


def cycles_of(order: list[int]) -> int:
    """Count the cycles of a permutation, of more than one element."""
    seen: set[int] = set()
    cycles = 0
    for start in range(len(order)):
        position, length = start, 0
        while position not in seen:
            seen.add(position)
            position, length = order[position], length + 1
        cycles += length > 1
    return cycles


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 4)), max_size=10
    ),
    threshold=st.integers(1, 4),
    regions=st.sampled_from([3, 4]),
)
@EXAMPLES
def test_reorder_is_a_small_permutation(
    requests: list[tuple[int, int, int]], threshold: int, regions: int
) -> None:
    """Regions do not decrease, what stood right stays, and a second call moves nothing."""
    ids = [f"r{i}" for i in range(len(requests))]
    tokens, computed, prompts = ([request[k] for request in requests] for k in range(3))
    batch = Batch(list(ids), computed, prompts)
    moved = reorder(batch, tokens, decode_threshold=threshold, regions=regions)

    def region(i: int) -> int:
        if regions == 3:
            return 0 if tokens[i] <= threshold else (1 if computed[i] else 2)
        if not computed[i]:
            return 3
        return 2 if tokens[i] > threshold else int(computed[i] < prompts[i])

    order = [ids.index(request) for request in batch.req_ids]
    assert sorted(ids) == sorted(batch.req_ids)
    after = [region(i) for i in order]
    assert sorted(after) == after
    assert moved is (order != sorted(order))
    misplaced = [p for p in range(len(ids)) if region(p) != after[p]]
    for p in set(range(len(ids))) - set(misplaced):
        assert p == order[p]
    movers = [order[p] for p in misplaced]
    assert sorted(movers, key=lambda i: (region(i), i)) == movers
    assert len(batch.swaps) <= len(misplaced) - cycles_of(order)
    assert all(i != j for i, j in batch.swaps)
    assert not reorder(
        batch, [tokens[i] for i in order], decode_threshold=threshold, regions=regions
    )
