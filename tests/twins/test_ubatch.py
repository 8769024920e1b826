"""Micro-batches: the slices of a batch, and the metadata of each slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import reference
from tests.twins.arrays import int32, int64

QUERY_LENS = [4, 10, 5]
COMPUTED = [2, 7, 4]


def ubatch(r0: int, r1: int, t0: int, t1: int) -> reference.UBatchSlice:
    return reference.UBatchSlice(slice(r0, r1), slice(t0, t1))


def test_slices_of_the_type(twin: Any) -> None:
    assert twin.convert(ubatch(0, 2, 3, 9)).num_tokens == 6
    assert not twin.convert(ubatch(0, 2, 3, 9)).is_empty()
    assert twin.convert(ubatch(2, 2, 3, 9)).is_empty()
    assert twin.convert(ubatch(0, 2, 9, 9)).is_empty()
    assert twin.convert(ubatch(0, 2, 9, 3)).is_empty()
    assert twin.convert(ubatch(0, 2, 3, 9)) == twin.convert(ubatch(0, 2, 3, 9))
    with pytest.raises(AttributeError):
        twin.convert(ubatch(0, 2, 3, 9)).token_slice = slice(0, 1)


@pytest.mark.parametrize(
    ("counts", "split_points", "expected"),
    [
        (QUERY_LENS, [9, 12], [ubatch(0, 2, 0, 9), ubatch(1, 2, 9, 12), ubatch(1, 3, 12, 19)]),
        (QUERY_LENS, 9, [ubatch(0, 2, 0, 9), ubatch(1, 3, 9, 19)]),
        (QUERY_LENS, 4, [ubatch(0, 1, 0, 4), ubatch(1, 3, 4, 19)]),
        (QUERY_LENS, [], [ubatch(0, 3, 0, 19)]),
        (QUERY_LENS, [1, 18], [ubatch(0, 1, 0, 1), ubatch(0, 3, 1, 18), ubatch(2, 3, 18, 19)]),
        ([2, 0, 3], 2, [ubatch(0, 1, 0, 2), ubatch(2, 3, 2, 5)]),
        ([2, 0, 3], 3, [ubatch(0, 3, 0, 3), ubatch(2, 3, 3, 5)]),
        ([0, 2, 0, 1, 0, 3, 0], [3], [ubatch(1, 4, 0, 3), ubatch(5, 6, 3, 6)]),
        ([0, 2, 0, 1, 0, 3, 0], [], [ubatch(1, 6, 0, 6)]),
        ([0, 2, 0, 0], [1], [ubatch(1, 2, 0, 1), ubatch(1, 2, 1, 2)]),
    ],
)
def test_create(twin: Any, counts: list[int], split_points: object, expected: Any) -> None:
    for dtype in (np.int32, np.int64):
        tokens = np.repeat(np.array(counts, dtype), 2)[::2]
        tokens.flags.writeable = False
        assert twin.convert(expected) == twin.create_ubatch_slices(tokens, split_points)


def test_create_past_32_bits(twin: Any) -> None:
    maximum = 2**31 - 1
    slices = twin.create_ubatch_slices(int32(maximum, maximum), np.int64(maximum + 1))
    assert [
        twin.convert(ubatch(0, 2, 0, maximum + 1)),
        twin.convert(ubatch(1, 2, maximum + 1, 2 * maximum)),
    ] == slices
    for one in slices:
        for part in (one.request_slice, one.token_slice):
            assert type(part.start) is type(part.stop) is int
            assert part.step is None


def test_create_past_64_bits(twin: Any) -> None:
    half = 2**62
    slices = twin.create_ubatch_slices(int64(half, half, half), [half, 2**63 + 7])
    expected = [(0, 1, 0, half), (1, 3, half, 2**63 + 7), (2, 3, 2**63 + 7, 3 * half)]
    assert [twin.convert(ubatch(*one)) for one in expected] == slices


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 3, [0, 4, 14, 19]), (1, 3, [0, 10, 15]), (1, 2, [0, 10]), (3, 3, [0]), (0, 0, [0])],
)
def test_slice_starts(twin: Any, start: int, stop: int, expected: list[int]) -> None:
    starts = twin.int32(0, 99, 4, 99, 14, 99, 19)[::2]
    result = twin.slice_query_start_locs(starts, slice(start, stop, 1))
    assert expected == result.tolist()
    assert result.dtype == twin.dtype("int32")
    assert not twin.shares_memory(result, starts)


@pytest.mark.parametrize(
    ("one", "starts", "seq_lens", "computed"),
    [
        pytest.param(ubatch(0, 2, 0, 9), [0, 4, 9], [6, 12], [2, 7], id="cut at the back"),
        pytest.param(ubatch(1, 2, 9, 12), [0, 3], [15], [12], id="one request, cut at both ends"),
        pytest.param(ubatch(1, 3, 9, 19), [0, 5, 10], [17, 9], [12, 4], id="cut at the front"),
        pytest.param(
            ubatch(0, 3, 2, 16),
            [0, 2, 12, 14],
            [6, 17, 6],
            [4, 7, 4],
            id="in the middle, cut at both ends",
        ),
        pytest.param(ubatch(0, 3, 0, 19), [0, 4, 14, 19], [6, 17, 9], COMPUTED, id="all of it"),
        pytest.param(ubatch(0, 3, 0, 4), [0, 4, 4, 4], [6, 7, 4], COMPUTED, id="more requests"),
    ],
)
def test_make_with_slice(
    twin: Any,
    make_batch: Any,
    one: Any,
    starts: list[int],
    seq_lens: list[int],
    computed: list[int],
) -> None:
    batch = make_batch(QUERY_LENS, COMPUTED, causal=False, encoder_seq_lens=int64(1, 2, 3))
    part = twin._make_metadata_with_slice(twin.convert(one), batch)
    part.validate(block_size=2)
    assert starts == part.query_start_loc.tolist() == part.query_start_loc_cpu.tolist()
    assert seq_lens == part.seq_lens.tolist() == part.seq_lens_cpu.tolist()
    assert computed == part.num_computed_tokens_cpu.tolist()
    requests, tokens = one.request_slice, one.token_slice
    assert (requests.stop - requests.start, one.num_tokens) == (
        part.num_reqs,
        part.num_actual_tokens,
    )
    assert (max(np.diff(starts)), 17) == (part.max_query_len, part.max_seq_len)
    assert batch.block_table_tensor[requests].tolist() == part.block_table_tensor.tolist()
    assert batch.slot_mapping[tokens].tolist() == part.slot_mapping.tolist()
    assert twin.shares_memory(batch.block_table_tensor, part.block_table_tensor)
    assert twin.shares_memory(batch.slot_mapping, part.slot_mapping)
    assert part.encoder_seq_lens is not None
    assert [1, 2, 3][requests] == part.encoder_seq_lens.tolist()
    assert part.causal is False


def test_what_must_be_made_anew(twin: Any, make_batch: Any) -> None:
    batch = make_batch(
        QUERY_LENS,
        COMPUTED,
        logits_indices_padded=twin.int64(3, 13, 18),
        num_logits_indices=3,
        dcp_local_seq_lens=twin.int32(6, 17, 9),
    )
    (part,) = twin.split_attn_metadata([twin.convert(ubatch(0, 3, 0, 19))], batch)
    assert part.logits_indices_padded is None
    assert part.num_logits_indices is None
    assert part.dcp_local_seq_lens is None
    assert batch.num_logits_indices == 3
    assert not twin.shares_memory(part.seq_lens, batch.seq_lens)
    assert not twin.shares_memory(part.query_start_loc, batch.query_start_loc)


def test_padding_behind_the_last_request(twin: Any, make_batch: Any) -> None:
    batch = make_batch([2, 3, 0], [4, 0, 0], padding_tokens=4)
    part = twin._make_metadata_with_slice(twin.convert(ubatch(1, 3, 3, 9)), batch)
    assert [0, 2, 2] == part.query_start_loc.tolist()
    assert [3, 0] == part.seq_lens.tolist()
    assert [1, 0] == part.num_computed_tokens_cpu.tolist()
    assert part.num_actual_tokens == 6
    assert batch.slot_mapping[3:].tolist() == part.slot_mapping.tolist()


@pytest.mark.parametrize("request_slice", [slice(1, 2), slice(3, 4), slice(1, 4)])
def test_a_slice_of_padding_alone(twin: Any, make_batch: Any, request_slice: slice) -> None:
    batch = make_batch([2, 0, 3, 0], [4, 5, 0, 0], padding_tokens=4)
    part = twin._make_metadata_with_slice(twin.UBatchSlice(request_slice, slice(6, 8)), batch)
    part.validate(block_size=2)
    assert [0] * (part.num_reqs + 1) == part.query_start_loc.tolist()
    assert batch.seq_lens[request_slice].tolist() == part.seq_lens.tolist()
    assert batch.seq_lens[request_slice].tolist() == part.num_computed_tokens_cpu.tolist()
    assert part.max_query_len == 3
