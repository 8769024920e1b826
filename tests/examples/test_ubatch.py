"""Micro-batches: the slices of a batch, and the metadata of each slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.examples.twins import Twin, plain, shares_memory, shown

QUERY_LENS = [4, 10, 5]
COMPUTED = [2, 7, 4]
MOST = 2**31 - 1


def ubatch(twin: Twin, r0: int, r1: int, t0: int, t1: int) -> Any:
    """Return the slice of the requests r0 to r1 and the tokens t0 to t1."""
    return twin.UBatchSlice(slice(r0, r1), slice(t0, t1))


@pytest.mark.parametrize(
    ("bounds", "num_tokens", "is_empty"),
    [
        ((0, 2, 3, 9), 6, False),
        ((2, 2, 3, 9), 6, True),
        ((0, 2, 9, 9), 0, True),
    ],
)
def test_slices(twin: Twin, bounds, num_tokens, is_empty) -> None:
    one = ubatch(twin, *bounds)
    assert (num_tokens, is_empty) == (one.num_tokens, one.is_empty())
    assert one == ubatch(twin, *bounds)


@pytest.mark.parametrize(
    ("counts", "split_points", "expected"),
    [
        # the second request has the tokens 4 to 13, so it is in each of three slices
        (QUERY_LENS, [9, 12], [(0, 2, 0, 9), (1, 2, 9, 12), (1, 3, 12, 19)]),
        (QUERY_LENS, 9, [(0, 2, 0, 9), (1, 3, 9, 19)]),
        (QUERY_LENS, 4, [(0, 1, 0, 4), (1, 3, 4, 19)]),
        (QUERY_LENS, [], [(0, 3, 0, 19)]),
        (QUERY_LENS, [1, 18], [(0, 1, 0, 1), (0, 3, 1, 18), (2, 3, 18, 19)]),
        # requests without tokens are in a slice only between others
        ([2, 0, 3], 2, [(0, 1, 0, 2), (2, 3, 2, 5)]),
        ([2, 0, 3], 3, [(0, 3, 0, 3), (2, 3, 3, 5)]),
        ([0, 2, 0, 1, 0, 3, 0], [3], [(1, 4, 0, 3), (5, 6, 3, 6)]),
        ([0, 2, 0, 1, 0, 3, 0], [], [(1, 6, 0, 6)]),
        ([0, 2, 0, 0], [1], [(1, 2, 0, 1), (1, 2, 1, 2)]),
        ([MOST, MOST], MOST + 1, [(0, 2, 0, MOST + 1), (1, 2, MOST + 1, 2 * MOST)]),
        (
            [2**62] * 3,  # past 64 bits
            [2**62, 2**63 + 7],
            [(0, 1, 0, 2**62), (1, 3, 2**62, 2**63 + 7), (2, 3, 2**63 + 7, 3 * 2**62)],
        ),
    ],
)
def test_create(twin: Twin, counts, split_points, expected) -> None:
    slices = twin.create_ubatch_slices(np.array(counts, np.int64), split_points)
    assert [ubatch(twin, *bounds) for bounds in expected] == slices


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 3, [0, 4, 14, 19]), (1, 3, [0, 10, 15]), (1, 2, [0, 10]), (3, 3, [0]), (0, 0, [0])],
)
def test_starts_of_a_slice(twin: Twin, start, stop, expected) -> None:
    starts = twin.array([0, 4, 14, 19])
    sliced = twin.slice_query_start_locs(starts, slice(start, stop))
    assert (expected, starts.dtype) == (sliced.tolist(), sliced.dtype)
    assert not shares_memory(starts, sliced)


@pytest.mark.parametrize(
    ("bounds", "starts", "seq_lens", "computed", "max_query_len"),
    [
        # a request whose end is cut off has a shorter sequence;
        # one whose beginning is cut off has more computed tokens
        pytest.param((0, 2, 0, 9), [0, 4, 9], [6, 12], [2, 7], 5, id="cut at the back"),
        pytest.param((1, 2, 9, 12), [0, 3], [15], [12], 3, id="cut at both ends"),
        pytest.param((1, 3, 9, 19), [0, 5, 10], [17, 9], [12, 4], 5, id="cut at the front"),
        pytest.param((0, 3, 2, 16), [0, 2, 12, 14], [6, 17, 6], [4, 7, 4], 10, id="the middle"),
        pytest.param((0, 3, 0, 19), [0, 4, 14, 19], [6, 17, 9], COMPUTED, 10, id="all of it"),
        pytest.param((0, 3, 0, 4), [0, 4, 4, 4], [6, 7, 4], COMPUTED, 4, id="more requests"),
    ],
)
def test_metadata_of_a_slice(twin: Twin, bounds, starts, seq_lens, computed, max_query_len) -> None:
    batch = twin.batch(
        QUERY_LENS,
        COMPUTED,
        causal=False,
        encoder_seq_lens=[1, 2, 3],
        logits_indices_padded=[3, 13, 18],
        num_logits_indices=3,
        dcp_local_seq_lens=[6, 17, 9],
    )
    part = twin._make_metadata_with_slice(ubatch(twin, *bounds), batch)
    part.validate(block_size=2)
    r0, r1, t0, t1 = bounds
    expected = {
        "query_start_loc": starts,
        "seq_lens": seq_lens,
        "num_computed_tokens_cpu": computed,
        "num_reqs": r1 - r0,
        "num_actual_tokens": t1 - t0,
        "max_query_len": max_query_len,
        "max_seq_len": 17,  # a bound: that of the whole batch
        "block_table_tensor": plain(batch.block_table_tensor)[r0:r1],
        "slot_mapping": plain(batch.slot_mapping)[t0:t1],
        "encoder_seq_lens": [1, 2, 3][r0:r1],
        "causal": False,
        # these would have to be made anew
        "logits_indices_padded": None,
        "num_logits_indices": None,
        "dcp_local_seq_lens": None,
    }
    assert expected == shown(part, expected)
    assert shares_memory(batch.slot_mapping, part.slot_mapping)
    assert not shares_memory(batch.seq_lens, part.seq_lens)


@pytest.mark.parametrize("seq_lens_cpu", [[6, 17, 9], None])
def test_optional_fields_of_a_slice(twin: Twin, seq_lens_cpu) -> None:
    batch = twin.batch(
        QUERY_LENS,
        COMPUTED,
        seq_lens_cpu=seq_lens_cpu,
        is_prefilling=[False, True, True],
        positions=[*range(2, 6), *range(7, 17), *range(4, 9)],
        seq_lens_cpu_upper_bound=[7, 18, 9],
        dcp_local_seq_lens_cpu_upper_bound=[3, 9, 5],
        max_logits_per_req=3,
        req_idx=[5, 0, 8],
    )
    part = twin._make_metadata_with_slice(ubatch(twin, 0, 2, 2, 9), batch)
    expected = {
        "seq_lens": [6, 12],  # 5 tokens of the second request are behind the micro-batch
        "seq_lens_cpu": None if seq_lens_cpu is None else [6, 12],
        "seq_lens_cpu_upper_bound": [7, 13],
        "dcp_local_seq_lens_cpu_upper_bound": [3, 9],  # still bounds
        "is_prefilling": [False, True],
        "positions": [4, 5, *range(7, 12)],
        "max_logits_per_req": 3,
        "req_idx": [5, 0],
    }
    assert expected == shown(part, expected)
    for name in ("positions", "is_prefilling", "req_idx"):
        assert shares_memory(getattr(batch, name), getattr(part, name))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        # requests 0 and 2 have tokens, 1 and 3 are padding; the tokens 5 to 8 are padding
        ((2, 4, 2, 9), ([0, 3, 3], [3, 0], [0, 0], 7)),
        ((2, 4, 3, 9), ([0, 2, 2], [3, 0], [1, 0], 6)),
        ((1, 2, 6, 8), ([0, 0], [5], [5], 2)),
        ((1, 4, 6, 8), ([0, 0, 0, 0], [5, 3, 0], [5, 3, 0], 2)),
    ],
)
def test_padding(twin: Twin, bounds, expected) -> None:
    batch = twin.batch([2, 0, 3, 0], [4, 5, 0, 0], padding_tokens=4)
    (part,) = twin.split_attn_metadata([ubatch(twin, *bounds)], batch)
    part.validate(block_size=2)
    names = ("query_start_loc", "seq_lens", "num_computed_tokens_cpu", "num_actual_tokens")
    assert expected == tuple(shown(part, names).values())
