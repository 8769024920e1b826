"""The order of a batch by request kind: splitting and reordering."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.functions.batch_order import InputBatch


@pytest.mark.parametrize(
    ("query_lens", "threshold", "uniform", "padding", "expected"),
    [
        ([1, 1, 1, 7], 1, False, 0, (3, 1, 3, 7)),
        ([2, 1, 3, 9], 3, False, 0, (3, 1, 6, 9)),
        ([2, 1, 3, 9], 3, True, 0, (1, 3, 2, 13)),
        ([9, 1], 1, False, 0, (0, 2, 0, 10)),
        ([1, 5, 1], 1, False, 0, (1, 2, 1, 6)),
        ([], 1, False, 0, (0, 0, 0, 0)),
        ([0, 0], 1, True, 0, (2, 0, 0, 0)),
        ([0, 2, 0, 2, 3], 3, True, 0, (4, 1, 4, 3)),
        ([0, 9], 3, True, 0, (1, 1, 0, 9)),
        ([4, 4], 3, True, 0, (0, 2, 0, 8)),
        ([3, 3, 0, 3], 3, True, 0, (4, 0, 9, 0)),
        ([3, 3, 0, 4, 0], 3, False, 0, (3, 2, 6, 4)),
        ([1, 8], 1, False, 3, (1, 1, 1, 11)),
        ([1, 1], 1, False, 3, (2, 0, 5, 0)),
    ],
)
def test_split_in_two(
    twin: Any,
    make_batch: Any,
    query_lens: list[int],
    threshold: int,
    uniform: bool,
    padding: int,
    expected: tuple[int, ...],
) -> None:
    batch = make_batch(query_lens, [5] * len(query_lens), padding_tokens=padding)
    with twin.checked():
        counts = twin.split_decodes_and_prefills(batch, threshold, uniform)
    assert expected == counts
    assert {int} == {type(count) for count in counts}


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
def test_split_in_three(
    twin: Any,
    make_batch: Any,
    query_lens: list[int],
    computed: list[int],
    threshold: int,
    padding: int,
    expected: tuple[int, ...],
) -> None:
    batch = make_batch(query_lens, computed, padding_tokens=padding)
    with twin.checked():
        counts = twin.split_decodes_prefills_and_extends(batch, threshold)
    assert expected == counts
    assert {int} == {type(count) for count in counts}


def test_an_engine_s_own_metadata(twin: Any) -> None:
    starts = twin.int32(0, 9, 1, 9, 5)[::2]
    own = SimpleNamespace(query_start_loc=starts, query_start_loc_cpu=starts)
    own.num_reqs, own.num_actual_tokens = np.int64(2), np.int32(5)
    assert (1, 1, 1, 4) == twin.split_decodes_and_prefills(own)
    with pytest.raises(AttributeError, match="num_computed_tokens_cpu"):
        twin.split_decodes_prefills_and_extends(own)
    own.num_computed_tokens_cpu = twin.int32(3, 9, 0)[::2]
    assert (1, 0, 1, 1, 0, 4) == twin.split_decodes_prefills_and_extends(own)


def make_requests(ids: str, computed: list[int], prompts: list[int] | None = None) -> Any:
    """Make an engine's batch of these requests, which counts its swaps."""
    arrays = [None if each is None else np.array(each, np.int32) for each in (computed, prompts)]
    return InputBatch(list(ids), *arrays).make(None)


def reorder(twin: Any, batch: Any, tokens: list[int], **kwargs: object) -> bool:
    scheduled = dict(zip(batch.req_ids, tokens, strict=True))
    step = SimpleNamespace(num_scheduled_tokens=scheduled)
    return twin.reorder_batch_to_split_decodes_and_prefills(batch, step, **kwargs)


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
        ("abcdef", [9, 9, 9, 9, 1, 1], [0, 0, 5, 5, 5, 5], 1, "efcdab", 2),
        ("abcd", [3, 8, 2, 0], [0, 0, 0, 3], 3, "adcb", 1),
        ("abcde", [9, 1, 1, 8, 1], [0, 3, 3, 0, 3], 1, "ebcda", 1),
    ],
)
def test_reorder(
    twin: Any,
    ids: str,
    tokens: list[int],
    computed: list[int],
    threshold: int,
    expected: str,
    num_swaps: int,
) -> None:
    batch = make_requests(ids, computed)
    with twin.checked():
        moved = reorder(twin, batch, tokens, decode_threshold=threshold)
    assert moved is (ids != expected)
    assert expected == "".join(batch.req_ids)
    assert num_swaps == batch.num_swaps


def test_reorder_into_four_regions(twin: Any) -> None:
    batch = make_requests("fedcba", [0, 0, 9, 4, 9, 12], [3, 20, 20, 8, 9, 10])
    tokens = [2, 11, 11, 1, 1, 2]
    with twin.checked():
        assert reorder(twin, batch, tokens, decode_threshold=2, regions=4)
    # f and e have no computed tokens; d is long; c is within its prompt; b and a are past it
    assert ["b", "a", "c", "d", "f", "e"] == batch.req_ids
    scheduled = dict(zip("fedcba", tokens, strict=True))
    again = SimpleNamespace(num_scheduled_tokens=scheduled)
    assert not twin.reorder_batch_to_split_decodes_and_prefills(
        batch, again, decode_threshold=2, regions=4
    )


def test_three_regions_read_no_prompts(twin: Any) -> None:
    batch = make_requests("a", [0])
    assert not reorder(twin, batch, [5])
    with pytest.raises(AttributeError, match="num_prompt_tokens"):
        reorder(twin, batch, [5], regions=4)


def test_the_array_of_an_engine(twin: Any) -> None:
    swaps: list[tuple[int, int]] = []
    computed = np.array([0, -9, 7, -9, -7, -9])[::2]
    computed.flags.writeable = False
    batch: Any = SimpleNamespace(req_ids=["a", "b"], num_computed_tokens_cpu=computed)
    batch.swap_states = lambda i, j: swaps.append((i, j))
    assert reorder(twin, batch, [9, 1])
    assert [(0, 1)] == swaps
    assert {int} == set(map(type, swaps[0]))


def test_lookups_insert_nothing(twin: Any) -> None:
    counts = defaultdict(int, {"a": 1})
    step = SimpleNamespace(num_scheduled_tokens=counts)
    with pytest.raises(KeyError, match="no request 'b'"):
        twin.reorder_batch_to_split_decodes_and_prefills(make_requests("ab", [0, 7]), step)
    assert {"a": 1} == counts
