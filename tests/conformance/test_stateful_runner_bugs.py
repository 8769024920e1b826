# ruff: noqa: ANN401  # a bug takes any function's place
"""Bugs of a runner, or of a function in both twins: the stateful test finds each.

The twins agree, so only the invariants of each by itself can find them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from planted_bugs import after, never
from stateful_bugs import TWO_OWNERS, Bug, assert_found

import fast
import reference
from conformance.engine.input_batch import InputBatch
from conformance.engine.padded_batch import BatchBuffers
from conformance.engine.table_rows import TableRows

BOTH = (reference, fast)


def appending(append: Any) -> Any:
    """Append also what should become the whole row."""
    return lambda tables, rows, ends, ids, overwrite: append(
        tables, rows, ends, ids, [False] * len(overwrite)
    )


def forgetting_lengths(_: Any) -> Any:
    """Swap two positions' requests, and leave their computed tokens where they are."""

    def swap_states(batch: InputBatch, i: int, j: int) -> None:
        if batch.on_swap is not None:
            batch.on_swap(i, j)
        batch.req_ids[i], batch.req_ids[j] = batch.req_ids[j], batch.req_ids[i]

    return swap_states


def with_tokens_of_padding(fill: Any) -> Any:
    """Give the tokens of padding to the last padded request, at the positions left there."""

    def broken(buffers: BatchBuffers, slots: Any, query_lens: Any, computed: Any, num: int) -> None:
        fill(buffers, slots, query_lens, computed, num)
        num_reqs, num_tokens = len(slots), int(query_lens.sum())
        if num > num_reqs:
            buffers.query_start_loc.np[num] += 1
            buffers.seq_lens.np[num - 1] = 1
            buffers.positions.np[num_tokens : num_tokens + 1] = 0

    return broken


def leaving_padding(compute: Any) -> Any:
    """Leave in the slots of padding what an earlier step wrote there."""
    last: dict[int, Any] = {}

    def broken(tables: Any, starts: Any, positions: Any) -> Any:
        slots = compute(tables, starts, positions)
        before, num_tokens = last.get(id(tables)), int(starts[-1])
        if before is not None:
            width = min(before.shape[1], slots.shape[1])
            slots[:, num_tokens:width] = before[:, num_tokens:width]
        last[id(tables)] = slots.clone() if hasattr(slots, "clone") else slots.copy()
        return slots

    return broken


def at_old_positions(update: Any) -> Any:
    """Note a request's computed tokens when it comes, and add its tokens, accepted or not."""

    def broken(batch: InputBatch, step: Any) -> None:
        before = dict(zip(batch.req_ids, batch.num_computed_tokens_cpu.tolist(), strict=False))
        known = getattr(batch, "expected", {})
        update(batch, step)
        for position, req_id in enumerate(batch.req_ids):
            if req_id in before and req_id in known and req_id not in step.admitted_req_ids:
                batch.num_computed_tokens_cpu[position] = known[req_id]
        pairs = zip(batch.req_ids, batch.num_computed_tokens_cpu.tolist(), strict=False)
        batch.expected = {  # type: ignore[attr-defined]  # the bug's own
            req_id: computed + step.num_scheduled_tokens[req_id] for req_id, computed in pairs
        }

    return broken


def as_long_as_the_whole(split: Any) -> Any:
    """Leave the lengths of a micro-batch's sequences as they are in the batch."""

    def broken(slices: Any, batch: Any) -> Any:
        parts = split(slices, batch)
        requests = slices[0].request_slice
        first = dataclasses.replace(
            parts[0],
            seq_lens=batch.seq_lens[requests],
            seq_lens_cpu=batch.seq_lens_cpu[requests],
        )
        return [first, *parts[1:]]

    return broken


def of_the_first_chunk(virtual: Any) -> None:
    """Give all chunks the blocks of the first one."""
    virtual.block_table_tensor[:] = virtual.block_table_tensor[:1]


def of_the_first_block_size(compute: Any) -> Any:
    """Take the first group's block size for the next one."""

    def broken(tables: Any, starts: Any, positions: Any) -> Any:
        slots = compute(tables, starts, positions)
        if len(slots) > 1:
            slots[1][slots[1] > 1] -= 1
        return slots

    return broken


def losing_the_last_block(function: Any) -> Any:
    """Forget the last of a request's new blocks in the last group, where there are several."""

    def broken(rows: TableRows, step: Any) -> None:
        for ids in step.new_block_ids.values():
            if len(ids[-1]) > 1:
                ids[-1][-1] = ids[-1][0]
        function(rows, step)

    return broken


def with_the_first_rows_blocks(fill: Any) -> Any:
    """Give padded requests the first request's row."""

    def broken(buffers: BatchBuffers, slots: Any, query_lens: Any, computed: Any, num: int) -> None:
        fill(buffers, slots, query_lens, computed, num)
        buffers.idx_mapping.np[len(slots) : num] = slots[0]

    return broken


def of_the_first_token(fill: Any) -> Any:
    """Want the logits of each request's first token."""

    def broken(buffers: BatchBuffers, slots: Any, query_lens: Any, computed: Any, num: int) -> None:
        fill(buffers, slots, query_lens, computed, num)
        starts = buffers.query_start_loc.np[: len(slots)]
        buffers.logits_indices.np[: len(slots)] = starts

    return broken


def keeping_old_blocks(gather: Any) -> Any:
    """Leave behind a row's blocks what an earlier row had there."""
    last: dict[int, Any] = {}

    def broken(tables: Any, idx_mapping: Any) -> Any:
        gathered = gather(tables, idx_mapping)
        copies = []
        for group, table in enumerate(gathered):
            for row, before in zip(table, last.get(id(tables), [()] * 9)[group], strict=False):
                row[row == 0] = before[row == 0]
            copies.append(table.clone() if hasattr(table, "clone") else table.copy())
        last[id(tables)] = copies
        return gathered

    return broken


def of_the_other_rank(compute: Any) -> Any:
    """Write what the next rank should write."""

    def broken(*args: Any, cp_world_size: int = 1, cp_rank: int = 0, **kwargs: Any) -> Any:
        cp_rank = (cp_rank + 1) % cp_world_size
        return compute(*args, cp_world_size=cp_world_size, cp_rank=cp_rank, **kwargs)

    return broken


BUGS: list[tuple[str, list[tuple[object, str]], Bug, str]] = [
    (
        "compaction: rows stay where they are",
        [(twin.BlockTables, "move_row") for twin in BOTH],
        never,
        rf"null block|{TWO_OWNERS}|is none of its request's",
    ),
    (
        "reordering: rows stay where they are",
        [(twin.BlockTables, "swap_rows") for twin in BOTH],
        never,
        rf"null block|{TWO_OWNERS}|is none of its request's",
    ),
    (
        "reordering: computed tokens stay where they are",
        [(InputBatch, "swap_states")],
        forgetting_lengths,
        r"reads slot|does not read|none of its request's",
    ),
    (
        "reordering: requests stay where they are",
        [(twin, "reorder_batch_to_split_decodes_and_prefills") for twin in BOTH],
        never,
        r"request-\d+, an? \w+, comes before request-\d+, an? \w+",
    ),
    (
        "speculation: drafts are counted as computed before they are accepted",
        [(InputBatch, "update")],
        at_old_positions,
        r"none of its request's|reads slot",
    ),
    (
        "preemption: new blocks come behind the old ones",
        [(twin.BlockTables, "append_block_ids") for twin in BOTH],
        appending,
        rf"is none of its request's|{TWO_OWNERS}|is free",
    ),
    (
        "padding: a padded request has a token",
        [(BatchBuffers, "fill")],
        with_tokens_of_padding,
        r"which is padding, is written to slot",
    ),
    (
        "padding: its slots are an earlier step's",
        [(twin.BlockTables, "compute_slot_mappings") for twin in BOTH],
        leaving_padding,
        r"which is padding, is written to slot",
    ),
    (
        "padding: its requests have the first one's blocks",
        [(BatchBuffers, "fill")],
        with_the_first_rows_blocks,
        r"which is padding, is \d+, but should be 0",
    ),
    (
        "padding: behind a row's blocks there are an earlier row's",
        [(twin.BlockTables, "gather_block_tables") for twin in BOTH],
        keeping_old_blocks,
        r"block \d+ of .* is \d+, but should be 0",
    ),
    (
        "fast prefill: the first tokens are wanted",
        [(BatchBuffers, "fill")],
        of_the_first_token,
        r"logits are wanted of the tokens",
    ),
    (
        "context-parallel ranks: each writes another's tokens",
        [(twin, "compute_slot_mapping") for twin in BOTH],
        of_the_other_rank,
        r"in the slots of rank \d, token",
    ),
    (
        "micro-batches: the first one reads what is not written yet",
        [(twin, "split_attn_metadata") for twin in BOTH],
        as_long_as_the_whole,
        r"in micro-batches, token",
    ),
    (
        "virtual batches: all have the first one's blocks",
        [(twin, "make_local_attention_virtual_batches") for twin in BOTH],
        after(of_the_first_chunk),
        r"in the virtual batch of chunks of \d+, token",
    ),
    (
        "groups: the second one's slots are wrong",
        [(twin.BlockTables, "compute_slot_mappings") for twin in BOTH],
        of_the_first_block_size,
        r"group 1 .*(both written to|is none of|never written|which is free)",
    ),
    (
        "groups: the last one's last block is its first",
        [(TableRows, "append")],
        losing_the_last_block,
        rf"{TWO_OWNERS}",
    ),
]


@pytest.mark.parametrize(
    ("places", "make_bug", "message"), [bug[1:] for bug in BUGS], ids=[bug[0] for bug in BUGS]
)
def test_a_bug_of_both_runners_is_found(
    places: list[tuple[Any, str]],
    make_bug: Bug,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default run finds it and names the request, though the twins agree."""
    assert_found(places, make_bug, message, monkeypatch)
