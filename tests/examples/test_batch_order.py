"""The order of a batch by request kind: splitting and reordering."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin


@pytest.mark.parametrize(
    ("query_lens", "threshold", "uniform", "padding", "expected"),
    [
        # expected: decodes, prefills, tokens of decodes, tokens of prefills
        ([1, 1, 1, 7], 1, False, 0, (3, 1, 3, 7)),
        ([2, 1, 3, 9], 3, False, 0, (3, 1, 6, 9)),
        ([2, 1, 3, 9], 3, True, 0, (1, 3, 2, 13)),  # uniform: only queries like the first
        ([9, 1], 1, False, 0, (0, 2, 0, 10)),  # decodes are those in front
        ([1, 5, 1], 1, False, 0, (1, 2, 1, 6)),
        ([], 1, False, 0, (0, 0, 0, 0)),
        ([0, 0], 1, True, 0, (2, 0, 0, 0)),
        ([0, 2, 0, 2, 3], 3, True, 0, (4, 1, 4, 3)),  # uniform but for requests without tokens
        ([0, 9], 3, True, 0, (1, 1, 0, 9)),
        ([4, 4], 3, True, 0, (0, 2, 0, 8)),
        ([3, 3, 0, 3], 3, True, 0, (4, 0, 9, 0)),
        ([3, 3, 0, 4, 0], 3, False, 0, (3, 2, 6, 4)),
        ([1, 8], 1, False, 3, (1, 1, 1, 11)),  # padding counts with the last kind
        ([1, 1], 1, False, 3, (2, 0, 5, 0)),
    ],
)
def test_decodes_and_prefills(
    twin: Twin, query_lens, threshold, uniform, padding, expected
) -> None:
    batch = twin.batch(query_lens, [5] * len(query_lens), padding_tokens=padding)
    assert expected == twin.split_decodes_and_prefills(batch, threshold, uniform)


@pytest.mark.parametrize(
    ("query_lens", "computed", "flags", "threshold", "expected", "expected_of_three"),
    [
        # with flags: which requests are prefilling; expected as above, and with extends apart
        ([1, 1, 1], [7, 9, 0], [0, 0, 1], 1, (2, 1, 2, 1), (2, 0, 1, 2, 0, 1)),  # a prompt of 1
        ([1, 1, 1], [7, 9, 4], [0, 0, 1], 1, (2, 1, 2, 1), (2, 1, 0, 2, 1, 0)),  # a last chunk of 1
        ([2, 3, 1, 9, 3], [7, 9, 4, 2, 0], [0, 0, 1, 1, 1], 3, (2, 3, 5, 13), (2, 2, 1, 5, 10, 3)),
        ([1, 1], [7, 9], [0, 0], 1, (2, 0, 2, 0), (2, 0, 0, 2, 0, 0)),
        (
            [1, 0, 1],
            [7, 0, 9],
            [0, 1, 0],
            1,
            (1, 2, 1, 1),
            (1, 0, 2, 1, 0, 1),
        ),  # without tokens, too
        ([5, 1], [3, 0], [0, 1], 1, (0, 2, 0, 6), (0, 1, 1, 0, 5, 1)),
    ],
)
def test_short_extends_are_no_decodes(
    twin: Twin, query_lens, computed, flags, threshold, expected, expected_of_three
) -> None:
    batch = twin.batch(query_lens, computed, is_prefilling=flags)
    asks = {"treat_short_extends_as_decodes": False}
    assert expected == twin.split_decodes_and_prefills(batch, threshold, **asks)
    assert expected_of_three == twin.split_decodes_prefills_and_extends(batch, threshold, **asks)
    batch.is_prefilling = None
    for function in (twin.split_decodes_and_prefills, twin.split_decodes_prefills_and_extends):
        with pytest.raises(ValueError, match="is_prefilling is None"):
            function(batch, threshold, **asks)


@pytest.mark.parametrize(
    ("query_lens", "computed", "threshold", "padding", "expected"),
    [
        # expected: decodes, extends (prefills with computed tokens), prefills; tokens of each
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
        ([1, 9, 1, 9], [3, 0, 4, 5], 1, 0, (1, 0, 3, 1, 0, 19)),  # all behind a prefill are
        ([4, 1, 9, 0], [3, 0, 0, 0], 1, 0, (0, 2, 2, 0, 5, 9)),
    ],
)
def test_decodes_extends_and_prefills(
    twin: Twin, query_lens, computed, threshold, padding, expected
) -> None:
    batch = twin.batch(query_lens, computed, padding_tokens=padding)
    assert expected == twin.split_decodes_prefills_and_extends(batch, threshold)


class InputBatch(SimpleNamespace):
    """An engine's batch, which counts its swaps."""

    def __init__(self, ids: str, computed: list[int], prompts: list[int] | None = None) -> None:
        super().__init__(req_ids=list(ids), swaps=0)
        self.num_computed_tokens_cpu = np.array(computed, np.int32)
        if prompts is not None:
            self.num_prompt_tokens = np.array(prompts, np.int32)

    def swap_states(self, i: int, j: int) -> None:
        """Swap two requests."""
        self.swaps += 1
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for name in ("num_computed_tokens_cpu", "num_prompt_tokens"):
            array = vars(self).get(name)
            if array is not None:
                array[[i, j]] = array[[j, i]]


@pytest.mark.parametrize(
    ("ids", "tokens", "computed", "threshold", "expected", "num_swaps"),
    [
        # decodes (at most `threshold` tokens), then extends, then prefills (nothing computed)
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
def test_reorder(twin: Twin, ids, tokens, computed, threshold, expected, num_swaps) -> None:
    batch = InputBatch(ids, computed)
    step = SimpleNamespace(num_scheduled_tokens=dict(zip(ids, tokens, strict=True)))
    moved = twin.reorder_batch_to_split_decodes_and_prefills(batch, step, threshold)
    assert (expected, num_swaps) == ("".join(batch.req_ids), batch.swaps)
    assert moved is (ids != expected)


def test_reorder_into_four_regions(twin: Twin) -> None:
    batch = InputBatch("fedcba", [0, 0, 9, 4, 9, 12], [3, 20, 20, 8, 9, 10])
    tokens: dict[str, Any] = dict(zip("fedcba", [2, 11, 11, 1, 1, 2], strict=True))
    step = SimpleNamespace(num_scheduled_tokens=tokens)
    reorder = twin.reorder_batch_to_split_decodes_and_prefills
    assert reorder(batch, step, decode_threshold=2, regions=4)
    # b and a are past their prompts; c is within its prompt; d is long; f, e have none computed
    assert ["b", "a", "c", "d", "f", "e"] == batch.req_ids
    assert not reorder(batch, step, decode_threshold=2, regions=4)


def test_reorder_by_an_array(twin: Twin) -> None:
    batch, counts = InputBatch("abcd", [0, 7, 3, 4]), np.array([9, 1, 5, 1, -1], np.int32)
    reorder = twin.reorder_batch_to_split_decodes_and_prefills
    assert reorder(batch, None, num_scheduled_tokens=counts)
    assert ["d", "b", "c", "a"] == batch.req_ids
    assert [9, 1, 5, 1, -1] == counts.tolist()
    with pytest.raises(ValueError, match=r"num_scheduled_tokens\[0\] is -1, expected at least 0"):
        reorder(batch, None, num_scheduled_tokens=counts[::-1])
