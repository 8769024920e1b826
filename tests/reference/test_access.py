"""What a batch means: its reads and writes, and what the other functions do to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import (
    CommonAttentionMetadata,
    compute_slot_mapping,
    create_ubatch_slices,
    get_dcp_local_seq_lens,
    kv_reads,
    kv_writes,
    make_local_attention_virtual_batches,
    map_to_kernel_blocks,
    split_attn_metadata,
)

BatchMaker: TypeAlias = Callable[..., CommonAttentionMetadata]

EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True, database=None)

REQUESTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), max_size=4)
WORLDS = st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])


def lists_of(requests: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the query lengths and the computed tokens."""
    return [q for q, _ in requests], [c for _, c in requests]


def positions_of(batch: CommonAttentionMetadata) -> list[int]:
    """Return the position of each query token."""
    lens = np.diff(batch.query_start_loc).tolist()
    pairs = zip(lens, batch.seq_lens.tolist(), strict=True)
    return [position for q, s in pairs for position in range(s - q, s)]


def pairs_of(reads: set[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Return the (token, key position) of reads."""
    return sorted((token, key_position) for token, key_position, _ in reads)


def test_reads_by_hand(make_batch: BatchMaker) -> None:
    """A causal token reads up to itself, any other all of its sequence; padding reads nothing."""
    batch = make_batch(
        [2, 0], [1, 5], block_table_tensor=np.array([[5, 9, 0], [7, 8, 6]], np.int32)
    )
    expected = {(0, 0, 10), (0, 1, 11), (1, 0, 10), (1, 1, 11), (1, 2, 18)}
    assert expected == kv_reads(batch, 2)
    batch.causal = False
    assert expected | {(0, 2, 18)} == kv_reads(batch, 2)


def test_reads_of_ranks_by_hand(make_batch: BatchMaker) -> None:
    """A rank's keys lie one after another in its own blocks, whole or as kernel blocks."""
    batch = make_batch([1], [6], block_table_tensor=np.array([[5, 9, 0]], np.int32))
    assert {(0, 0, 10), (0, 2, 11), (0, 4, 18), (0, 6, 19)} == kv_reads(batch, 2, cp_world_size=2)
    assert {(0, 1, 10), (0, 3, 11), (0, 5, 18)} == kv_reads(batch, 2, cp_world_size=2, cp_rank=1)
    world = {"cp_world_size": 2, "cp_kv_cache_interleave_size": 2}
    assert {(0, 0, 10), (0, 1, 11), (0, 4, 18), (0, 5, 19)} == kv_reads(batch, 2, **world)
    batch.block_table_tensor = np.array([[8, 3, 6]], np.int32)
    kernel = {"kernel_block_size": 1, "cp_world_size": 3}
    assert {(0, 0, 8), (0, 3, 3), (0, 6, 6)} == kv_reads(batch, 2, **kernel)


def test_what_is_never_read(make_batch: BatchMaker) -> None:
    """Rows of requests without tokens, and what stands past a row's end, may hold anything."""
    table = np.array([[5, 9, -1], [-1, -1, -1]], np.int32)
    batch = make_batch([1, 0], [3, 5], block_table_tensor=table)
    assert {(0, 0, 10), (0, 1, 11), (0, 2, 18), (0, 3, 19)} == kv_reads(batch, 2)


def test_rows_of_no_columns(make_batch: BatchMaker) -> None:
    """Sequences of no positions need no blocks; one position needs one, read or not."""
    table = np.zeros((1, 0), np.int32)
    assert set() == kv_reads(make_batch([0], [0], block_table_tensor=table), 2)
    with pytest.raises(ValueError, match=r"^seq_lens\[0\] is 1 and needs 1 blocks of 2, but row 0"):
        kv_reads(make_batch([0], [1], block_table_tensor=table), 2)


def test_reads_near_the_greatest_block(make_batch: BatchMaker) -> None:
    """Slots past 2^31 do not overflow."""
    batch = make_batch([1], [0], block_table_tensor=np.array([[2**31 - 1]], np.int32))
    assert {(0, 0, (2**31 - 1) * 128)} == kv_reads(batch, 128)


def test_writes_by_hand(make_batch: BatchMaker) -> None:
    """Tokens without a slot are written nowhere, and slots past the batch's tokens are not read."""
    batch = make_batch([2], [1], padding_tokens=1, slot_mapping=np.array([7, -1, 2**40, 9]))
    assert {(0, 7), (2, 2**40)} == kv_writes(batch)
    assert set() == kv_writes(make_batch([], [], padding_tokens=2))


@pytest.mark.parametrize(
    ("changes", "kwargs", "error", "message"),
    [
        ({}, {"block_size": 0}, ValueError, "block_size is 0, expected 1 to 2147483647"),
        (
            {},
            {"kernel_block_size": 3},
            ValueError,
            "kernel_block_size is 3, expected a divisor of block_size 2",
        ),
        ({}, {"cp_rank": 1}, ValueError, "cp_rank is 1, expected 0 to 0"),
        (
            {},
            {"cp_kv_cache_interleave_size": 4},
            ValueError,
            "cp_kv_cache_interleave_size is 4, expected a divisor of block_size 2",
        ),
        (
            {"block_table_tensor": np.zeros((2, 2), np.int32)},
            {},
            ValueError,
            "seq_lens[1] is 5 and needs 3 blocks of 2, but row 1 of block_table_tensor has 2",
        ),
        (
            {"block_table_tensor": np.zeros((2, 1), np.int32)},
            {"cp_world_size": 2},
            ValueError,
            "seq_lens[1] is 5 and needs 2 blocks of 2, but row 1 of block_table_tensor has 1",
        ),
        (
            {"block_table_tensor": np.zeros((2, 4), np.int32)},
            {"kernel_block_size": 1},
            ValueError,
            "seq_lens[1] is 5 and needs 5 blocks of 1, but row 1 of block_table_tensor has 4",
        ),
        (
            {"block_table_tensor": np.array([[5, -1, 0], [0, 0, 0]], np.int32)},
            {},
            ValueError,
            "block_table_tensor[0, 1] is -1, expected at least 0",
        ),
        (
            {"num_reqs": 3},
            {},
            ValueError,
            ("query_start_loc has 3 entries, expected num_reqs + 1 = 4"),
        ),
    ],
)
def test_refusals_of_reads(
    make_batch: BatchMaker,
    changes: dict[str, Any],
    kwargs: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    """Each precondition broken in turn is refused, in these words."""
    batch = make_batch([2, 0], [1, 5], **changes)
    with pytest.raises(error) as caught:
        kv_reads(batch, **({"block_size": 2} | kwargs))
    assert message == str(caught.value)


def test_refusals_of_writes(make_batch: BatchMaker) -> None:
    """A slot that is neither one nor padding is refused; so is a batch that is not valid."""
    batch = make_batch([2], [1], slot_mapping=np.array([7, -2]))
    with pytest.raises(ValueError, match=r"^slot_mapping\[1\] is -2, expected at least -1$"):
        kv_writes(batch)
    batch.num_actual_tokens = 3
    with pytest.raises(ValueError, match=r"^slot_mapping has 2 entries, expected at least num_act"):
        kv_writes(batch)


@given(requests=REQUESTS, world=WORLDS, kernel_blocks=st.sampled_from([1, 2, 4]))
@EXAMPLES
def test_what_is_written_is_read_there(
    make_batch: BatchMaker,
    requests: list[tuple[int, int]],
    world: tuple[int, int],
    kernel_blocks: int,
) -> None:
    """On every rank, in whole and kernel blocks, a token reads itself where it is written."""
    block_size = 4
    batch = make_batch(*lists_of(requests), block_size=block_size)
    table = map_to_kernel_blocks(batch.block_table_tensor, kernel_blocks)
    kwargs: dict[str, int] = {
        "kernel_block_size": block_size // kernel_blocks,
        "cp_world_size": world[0],
        "cp_kv_cache_interleave_size": world[1] if block_size % world[1] == 0 else 1,
    }
    positions = positions_of(batch)
    pairs: list[tuple[int, int]] = []
    for rank in range(world[0]):
        slots = compute_slot_mapping(
            table,
            batch.query_start_loc,
            np.array(positions, np.int64),
            block_size,
            cp_rank=rank,
            **kwargs,
        )
        on_rank = dataclasses.replace(batch, block_table_tensor=table, slot_mapping=slots)
        reads = kv_reads(on_rank, block_size, cp_rank=rank, **kwargs)
        itself = {(token, slot) for token, p, slot in reads if p == positions[token]}
        assert kv_writes(on_rank) == itself
        assert reads == kv_reads(
            batch, block_size, cp_rank=rank, **(kwargs | {"kernel_block_size": 4})
        )
        pairs += pairs_of(reads)
    assert pairs_of(kv_reads(batch, block_size)) == sorted(pairs)


@given(requests=REQUESTS, world=WORLDS)
@EXAMPLES
def test_local_lengths_count_the_keys_of_the_last_token(
    make_batch: BatchMaker, requests: list[tuple[int, int]], world: tuple[int, int]
) -> None:
    """A request's last token reads as many keys on a rank as the rank's local length says."""
    batch = make_batch(*lists_of(requests), block_size=2)
    lengths = get_dcp_local_seq_lens(batch.seq_lens, world[0], None, world[1])
    for rank in range(world[0]):
        reads = kv_reads(
            batch,
            2,
            cp_world_size=world[0],
            cp_rank=rank,
            cp_kv_cache_interleave_size=world[1],
        )
        for i, (query_len, _) in enumerate(requests):
            last_token = int(batch.query_start_loc[i + 1]) - 1
            keys = [p for token, p, _ in reads if token == last_token]
            assert query_len == 0 or len(keys) == lengths[i, rank]


@given(requests=REQUESTS, chunk_and_block=st.sampled_from([(2, 1), (4, 2), (4, 4)]))
@EXAMPLES
def test_virtual_batches_restrict_reads_to_a_chunk(
    make_batch: BatchMaker, requests: list[tuple[int, int]], chunk_and_block: tuple[int, int]
) -> None:
    """Virtual requests read just what the batch reads in each token's chunk, counted from there."""
    chunk, block_size = chunk_and_block
    batch = make_batch(*lists_of(requests), block_size=block_size)
    virtual = make_local_attention_virtual_batches(chunk, batch, block_size)
    positions = positions_of(batch)
    expected = {
        (token, p % chunk, slot)
        for token, p, slot in kv_reads(batch, block_size)
        if p // chunk == positions[token] // chunk
    }
    assert expected == kv_reads(virtual, block_size)
    assert kv_writes(batch) == kv_writes(virtual)


@given(requests=REQUESTS, data=st.data(), padding=st.integers(0, 3))
@EXAMPLES
def test_micro_batches_partition_the_relation(
    make_batch: BatchMaker, requests: list[tuple[int, int]], data: st.DataObject, padding: int
) -> None:
    """Micro-batches read and write what the batch does, each token in one; padding adds nothing."""
    query_lens, computed = lists_of([*requests, (1, 2)])
    batch = make_batch(query_lens, computed)
    total = sum(query_lens)
    points = data.draw(st.sets(st.integers(1, total - 1), max_size=3)) if total > 1 else set()
    slices = create_ubatch_slices(np.array(query_lens), sorted(points))
    reads, writes = [], []
    for one, part in zip(slices, split_attn_metadata(slices, batch), strict=True):
        shift = one.token_slice.start
        reads += [(token + shift, p, slot) for token, p, slot in kv_reads(part, 2)]
        writes += [(token + shift, slot) for token, slot in kv_writes(part)]
    assert sorted(kv_reads(batch, 2)) == sorted(reads)
    assert sorted(kv_writes(batch)) == sorted(writes)
    padded = make_batch([*query_lens, 0], [*computed, 0], padding_tokens=padding)
    unpadded = padded.unpadded(total, len(query_lens))
    assert kv_writes(padded) == kv_writes(unpadded)
    assert kv_reads(padded, 2) == kv_reads(unpadded, 2)
