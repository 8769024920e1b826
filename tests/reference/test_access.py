"""The access relation of a batch: which slots it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from reference import CommonAttentionMetadata, kv_reads, kv_writes
from tests.refusals import refuses

BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]


def test_reads_by_hand(make_batch: BatchMaker) -> None:
    batch = make_batch(
        [2, 0], [1, 5], block_table_tensor=np.array([[5, 9, 0], [7, 8, 6]], np.int32)
    )
    expected = {(0, 0, 10), (0, 1, 11), (1, 0, 10), (1, 1, 11), (1, 2, 18)}
    assert expected == kv_reads(batch, 2)
    batch.causal = False
    assert expected | {(0, 2, 18)} == kv_reads(batch, 2)


def test_reads_of_ranks_by_hand(make_batch: BatchMaker) -> None:
    batch = make_batch([1], [6], block_table_tensor=np.array([[5, 9, 0]], np.int32))
    assert {(0, 0, 10), (0, 2, 11), (0, 4, 18), (0, 6, 19)} == kv_reads(batch, 2, cp_world_size=2)
    assert {(0, 1, 10), (0, 3, 11), (0, 5, 18)} == kv_reads(batch, 2, cp_world_size=2, cp_rank=1)
    world = {"cp_world_size": 2, "cp_kv_cache_interleave_size": 2}
    assert {(0, 0, 10), (0, 1, 11), (0, 4, 18), (0, 5, 19)} == kv_reads(batch, 2, **world)
    batch.block_table_tensor = np.array([[8, 3, 6]], np.int32)
    kernel = {"kernel_block_size": 1, "cp_world_size": 3}
    assert {(0, 0, 8), (0, 3, 3), (0, 6, 6)} == kv_reads(batch, 2, **kernel)


def test_what_is_never_read(make_batch: BatchMaker) -> None:
    table = np.array([[5, 9, -1], [-1, -1, -1]], np.int32)
    batch = make_batch([1, 0], [3, 5], block_table_tensor=table)
    assert {(0, 0, 10), (0, 1, 11), (0, 2, 18), (0, 3, 19)} == kv_reads(batch, 2)


def test_rows_of_no_columns(make_batch: BatchMaker) -> None:
    table = np.zeros((1, 0), np.int32)
    assert set() == kv_reads(make_batch([0], [0], block_table_tensor=table), 2)
    with pytest.raises(ValueError, match=r"^seq_lens\[0\] is 1 and needs 1 blocks of 2, but row 0"):
        kv_reads(make_batch([0], [1], block_table_tensor=table), 2)


def test_reads_near_the_greatest_block(make_batch: BatchMaker) -> None:
    batch = make_batch([1], [0], block_table_tensor=np.array([[2**31 - 1]], np.int32))
    assert {(0, 0, (2**31 - 1) * 128)} == kv_reads(batch, 128)


def test_writes_by_hand(make_batch: BatchMaker) -> None:
    batch = make_batch([2], [1], padding_tokens=1, slot_mapping=np.array([7, -1, 2**40, 9]))
    assert {(0, 7), (2, 2**40)} == kv_writes(batch)
    assert set() == kv_writes(make_batch([], [], padding_tokens=2))


@pytest.mark.parametrize(
    ("message", "case"),
    {
        "ValueError: block_size is 0, expected 1 to 2147483647": ({}, {"block_size": 0}),
        "ValueError: kernel_block_size is 3, expected a divisor of block_size 2": (
            {},
            {"kernel_block_size": 3},
        ),
        "ValueError: cp_rank is 1, expected 0 to 0": ({}, {"cp_rank": 1}),
        "ValueError: cp_kv_cache_interleave_size is 4, expected a divisor of block_size 2": (
            {},
            {"cp_kv_cache_interleave_size": 4},
        ),
        **{
            (
                f"ValueError: seq_lens[1] is 5 and needs {needed}, but row 1 of "
                f"block_table_tensor has {width}"
            ): ({"block_table_tensor": np.zeros((2, width), np.int32)}, kwargs)
            for width, kwargs, needed in (
                (2, {}, "3 blocks of 2"),
                (1, {"cp_world_size": 2}, "2 blocks of 2"),
                (4, {"kernel_block_size": 1}, "5 blocks of 1"),
            )
        },
        "ValueError: block_table_tensor[0, 1] is -1, expected at least 0": (
            {"block_table_tensor": np.array([[5, -1, 0], [0, 0, 0]], np.int32)},
            {},
        ),
        "ValueError: query_start_loc has 3 entries, expected num_reqs + 1 = 4": (
            {"num_reqs": 3},
            {},
        ),
    }.items(),
)
def test_refusals_of_reads(make_batch: BatchMaker, message: str, case: tuple[Any, ...]) -> None:
    changes, kwargs = case
    batch = make_batch([2, 0], [1, 5], **changes)
    with refuses(message):
        kv_reads(batch, **({"block_size": 2} | kwargs))


def test_refusals_of_writes(make_batch: BatchMaker) -> None:
    batch = make_batch([2], [1], slot_mapping=np.array([7, -2]))
    with pytest.raises(ValueError, match=r"^slot_mapping\[1\] is -2, expected at least -1$"):
        kv_writes(batch)
    batch.num_actual_tokens = 3
    with pytest.raises(ValueError, match=r"^slot_mapping has 2 entries, expected at least num_act"):
        kv_writes(batch)
