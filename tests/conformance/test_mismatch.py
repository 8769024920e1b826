"""Failure messages: the call as a table, and the place of the difference in it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from conformance.messages.call_table import render
from conformance.messages.mismatch import Mismatch
from conformance.messages.places import describe_place, locate
from conformance.strategies.batch import Batch, Layout
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

BATCH = Batch((2, 0, 3), (3, 0, 1), Layout(2), ((4, 9, 7), (), (1, 5)), num_padding_tokens=1)

SLOTS = Call(
    "compute_slot_mapping",
    {
        "block_table": BATCH.block_table(),
        "query_start_loc": BATCH.query_start_loc(),
        "positions": BATCH.positions(),
        "block_size": 2,
    },
)
SPLIT = Call("split_decodes_and_prefills", {"common_attn_metadata": BATCH.metadata()})


def value_at(path: str, *index: int) -> Difference:
    """Return a difference of values."""
    return Difference(Verdict.VALUE, path, index, 1, 2)


def test_a_call_is_a_table_of_requests() -> None:
    """Requests are rows, with their tokens, blocks and positions; other arguments are above."""
    assert render(SLOTS).splitlines() == [
        "    block_size = 2",
        "    defaults: cp_world_size = 1, cp_rank = 0, cp_kv_cache_interleave_size = 1",
        "    request  tokens  block_table  positions",
        "    0        0..1    4 9 7        3 4",
        "    1        none    0 0 0",
        "    2        2..4    1 5 0        1 2 3 (then 0)",
    ]


def test_metadata_is_a_table_of_requests() -> None:
    """Metadata fields are columns; absent fields and copies of the starts are left out."""
    header, *rows = render(SPLIT).splitlines()[-4:]
    assert header.split() == [
        "request",
        "tokens",
        "seq_lens",
        "num_computed_tokens_cpu",
        "block_table_tensor",
        "slot_mapping",
    ]
    assert [" ".join(row.split()) for row in rows] == [
        "0 0..1 5 3 4 9 7 19 14",
        "1 none 0 0 0 0 0",
        "2 2..4 4 1 1 5 0 3 10 11 (then -1)",
    ]
    assert render(SPLIT).splitlines()[:2] == ["    num_reqs = 3", "    num_actual_tokens = 6"]


def test_a_call_without_starts_is_a_list() -> None:
    """A call that has no requests is reported argument by argument."""
    call = Call("map_to_kernel_blocks", {"block_ids": np.array([0, 3]), "blocks_per_kv_block": 2})
    assert render(call).splitlines() == [
        "    block_ids = [0, 3]  (int64)",
        "    blocks_per_kv_block = 2",
    ]


def test_starts_that_are_none_are_a_list() -> None:
    """Invalid starts are printed as they are."""
    bad = SLOTS.replacing(query_start_loc=np.array([0, 3, 1]))
    assert "    query_start_loc = [0, 3, 1]  (int64)" in render(bad).splitlines()


def test_long_values_are_cut() -> None:
    """A vector of a thousand elements does not fill the terminal."""
    call = Call("map_to_kernel_blocks", {"block_ids": np.arange(1000)})
    assert all(len(line) < 240 for line in render(call).splitlines())


@pytest.mark.parametrize(
    ("call", "difference", "where"),
    [
        (SLOTS, value_at("result", 0), "request 0, token 0 of its 2"),
        (SLOTS, value_at("result", 4), "request 2, token 2 of its 3"),
        (SLOTS, value_at("out", 5), "token 5, padding"),
        (SLOTS, dataclasses.replace(value_at("result", 4), verdict=Verdict.SHAPE), ""),
        (SLOTS, value_at("memory around out", 4), ""),
        (SPLIT, value_at("result.seq_lens", 1), "request 1"),
        (SPLIT, value_at("result[1].block_table_tensor", 2, 0), "request 2, column 0"),
        (SPLIT, value_at("result[1].slot_mapping", 3), "token 3"),
        (SPLIT, value_at("result[1].query_start_loc", 3), ""),
    ],
)
def test_where_a_difference_lies(call: Call, difference: Difference, where: str) -> None:
    """An index is described as a request or a token of the batch, or of the part of a result."""
    assert where == locate(call, difference)


RANKS = Call(
    "get_dcp_local_seq_lens",
    {"seq_lens": np.array([5], np.int32), "out": np.full((2, 1), 9, np.int32)},
)


@pytest.mark.parametrize(
    ("path", "index", "got", "where"),
    [
        ("out", (1, 0), 9, "as before the call"),
        ("out", (1, 0), 8, ""),  # a row is a request, and no token
        ("result", (0, 0), -1431655766, "the value of uninitialized memory"),
        ("result", (0, 0), 2**31 - 1, "the value of uninitialized memory"),
        ("result", None, -1431655766, ""),
        ("result.shape", None, (1,), ""),
    ],
)
def test_what_was_never_written(
    path: str, index: tuple[int, ...] | None, got: object, where: str
) -> None:
    """A report says that an element of `out` is unchanged, or that of a result unwritten."""
    assert where == describe_place(RANKS, Difference(Verdict.VALUE, path, index, got, 0))


def test_a_mismatch_is_reported_in_full() -> None:
    """A failure has the verdict, the difference with its place, and the call."""
    lines = str(Mismatch(SLOTS, "sim", value_at("result", 4))).splitlines()
    assert lines[:3] == [
        "compute_slot_mapping on sim: wrong value",
        "    result[4] = 1, but should be 2  (request 2, token 2 of its 3)",
        "called with",
    ]
