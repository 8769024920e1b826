"""Slots: where each token's key and value are stored."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import reference
from conformance.arrays.guard_bands import poisoned_out
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal
from conformance.coverage.presets import MINIMAL, Preset
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.slots import (
    KERNEL_BLOCKS_INVALID_INPUTS,
    SLOT_MAPPING_INVALID_INPUTS,
)
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change, InManagersBlocks
from conformance.laws.interpretation import Interpretation, Reader, changing, with_batch
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batches import batches, of_batch
from conformance.strategies.large_batches import (
    BLOCK_IDS,
    BLOCK_SIZE,
    INTERLEAVE,
    KERNEL_BLOCKS,
    RANKS,
    ROOM,
    batch_axes,
)
from conformance.strategies.slots import (
    DIMENSIONS,
    NUM_IDS,
    compute_slot_mapping_calls,
    layouts,
    map_to_kernel_blocks_calls,
    rank_of,
)
from conformance.targets.target import REFERENCE, Target
from conformance.values.aliases import Alias, Relation
from conformance.values.call import Call


def _with_change(call: Call, change: Change) -> Call:
    """Return the call for a changed batch; an `out` keeps its number of extra entries."""
    batch = change(call.source)
    arguments: dict[str, Any] = {
        "block_table": batch.block_table(),
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        **batch.layout.keywords(),
    }
    if "out" in call:
        room = len(call["out"]) - call.source.num_actual_tokens
        arguments["out"] = poisoned_out(batch.num_actual_tokens + room, np.int64)
    return with_batch(call, batch, **arguments)


def _slots_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    metadata = call.source.metadata()
    slots = np.array(reader.answer(call).tolist(), np.int64)
    yield reader.access(dataclasses.replace(metadata, slot_mapping=slots), call.source.layout)


def calls_in_place(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls in which each token has its own position."""
    return compute_slot_mapping_calls(preset, is_scattered=False)


@st.composite
def _mapped_batches(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls that map the table of a batch from the manager's blocks to kernel blocks."""
    layout = dataclasses.replace(draw(layouts(preset)), cp_world_size=1, cp_rank=0)
    call = Call("map_to_kernel_blocks", {}, draw(batches(preset, layout=layout)))
    return _mapping(call, Change())


_mapping = changing(
    block_ids=lambda batch: dataclasses.replace(InManagersBlocks()(batch), filler=0).block_table(),
    blocks_per_kv_block=lambda batch: batch.layout.blocks_per_kv_block,
)
"""Changes the batch of a call: the table lists the manager's blocks, and its filler is null."""


def _mapped_batch(reader: Reader, call: Call) -> Iterator[Access]:
    table = reader.answer(call).cpu().numpy()
    metadata = dataclasses.replace(call.source.metadata(), block_table_tensor=table)
    yield reader.access(metadata, call.source.layout)


SLOTS = Interpretation(_slots_of_batch, _with_change, shows=Half.WRITES, calls=calls_in_place)
"""Interprets `compute_slot_mapping`: the batch's writes through the slots."""

MAPPED_TABLE = Interpretation(_mapped_batch, _mapping, shows=Half.READS, calls=_mapped_batches)
"""Interprets `map_to_kernel_blocks`: the batch's reads through the table."""


def _ends_on_a_block(batch: Batch, shift: int) -> bool:
    size = batch.layout.block_size
    return any(
        q and s % size == shift % size
        for q, s in zip(batch.query_lens, batch.seq_lens, strict=True)
    )


def _is_shared(batch: Batch) -> bool:
    return any(a and b and a[0] == b[0] for a in batch.rows[:1] for b in batch.rows[1:])


def _layout(holds: Any) -> Any:
    return lambda call: holds(call.source.layout)


test_compute_slot_mapping = Contract(
    "compute_slot_mapping",
    compute_slot_mapping_calls,
    {
        **of_batch(),
        "a sequence ends on a block boundary": lambda call: _ends_on_a_block(call.source, 0),
        "a sequence ends just past a block boundary": lambda call: _ends_on_a_block(call.source, 1),
        "requests share blocks": lambda call: _is_shared(call.source),
        "a slot past 2**31": lambda call: any(
            b * (call.source.layout.kernel_block_size or call.source.layout.block_size) >= 2**31
            for row in call.source.rows
            for b in row
        ),
        "several ranks": _layout(lambda layout: layout.cp_world_size > 1),
        "not the first rank": _layout(lambda layout: layout.cp_rank > 0),
        "an interleave of more than 1": _layout(
            lambda layout: layout.cp_kv_cache_interleave_size > 1
        ),
        "kernel blocks split the manager's": _layout(lambda layout: layout.blocks_per_kv_block > 1),
        "a table wider than any request needs": lambda call: call.source.extra_columns > 0,
        "a table of more rows than requests": lambda call: call.source.extra_rows > 0,
        "padding's positions are negative": lambda call: (
            call.source.filler < 0 and call.source.num_padding_tokens > 0
        ),
        "out is given": lambda call: "out" in call,
        "out is longer than the tokens": lambda call: (
            len(call.get("out", ())) > call.source.num_actual_tokens
        ),
        "out is strided": lambda call: "out" in call and call["out"].strides[0] > 8,
    },
    pairs=(
        ("several ranks", "kernel blocks split the manager's"),
        ("several ranks", "an interleave of more than 1"),
        ("out is longer than the tokens", "out is strided"),
        ("padded requests at the end", "padded tokens at the end"),
        ("several ranks", "a slot past 2**31"),
    ),
    invalid_inputs=SLOT_MAPPING_INVALID_INPUTS,
    changes=frozenset({"out"}),
    aliases=(Alias("", Relation.VIEW, "out", lambda call: "out" in call),),
    has_kernel=True,
    laws=(
        "slots_are_distinct",
        "writes_are_read_back",
        "ranks_partition",
        "kernel_blocks_rename",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=SLOTS,
    on_device=("query_start_loc", "positions", "out"),
    axes={
        **batch_axes(),
        BLOCK_SIZE: Axis(lambda call: call.source.layout.block_size, 2**29 - 1, first=1),
        RANKS: Axis(lambda call: call.source.layout.cp_world_size, first=1),
        INTERLEAVE: Axis(_layout(lambda of: of.cp_kv_cache_interleave_size), first=1),
        KERNEL_BLOCKS: Axis(_layout(lambda layout: layout.blocks_per_kv_block), first=1),
        ROOM: Axis(lambda call: max(len(call.get("out", ())) - call.source.num_actual_tokens, 0)),
    },
    has_arrays=True,
)


def _pieces(call: Call) -> int:
    pieces: int = call["blocks_per_kv_block"]
    return pieces


def _numbers(call: Call) -> int:
    """Return the number of block IDs that the dtype can represent."""
    return int(np.iinfo(call["block_ids"].dtype).max) + 1


test_map_to_kernel_blocks = Contract(
    "map_to_kernel_blocks",
    map_to_kernel_blocks_calls,
    {
        "no ids": lambda call: call["block_ids"].size == 0,
        "several axes": lambda call: call["block_ids"].ndim > 1,
        "block 0 takes all that the dtype can hold": lambda call: (
            call["block_ids"].size > 0 and _numbers(call) == _pieces(call)
        ),
        "no ids, and block 0 would take more": lambda call: _numbers(call) < _pieces(call),
        "one kernel block a block": lambda call: call["blocks_per_kv_block"] == 1,
        "the last id that the dtype can hold": lambda call: (
            call["block_ids"].size > 0
            and (int(call["block_ids"].max()) + 1) * _pieces(call) >= _numbers(call)
        ),
    },
    invalid_inputs=KERNEL_BLOCKS_INVALID_INPUTS,
    laws=("kernel_blocks_rename", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=MAPPED_TABLE,
    axes={
        NUM_IDS: Axis(lambda call: call["block_ids"].size),
        BLOCK_IDS: Axis(lambda call: call["block_ids"].max(initial=0), 2**58),
        KERNEL_BLOCKS: Axis(_pieces, first=1),
        DIMENSIONS: Axis(lambda call: call["block_ids"].ndim, 33, "NumPy has no more than 64", 1),
    },
    has_arrays=True,
)


def _just_past(call: Call) -> int:
    """Return the first position after the last block of the table."""
    layout = call.source.layout
    blocks = call["block_table"].shape[1] // layout.blocks_per_kv_block
    past: int = blocks * layout.block_size * layout.cp_world_size
    return past


@st.composite
def _misplaced(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw a call in which some tokens may be at positions that no block holds."""
    call = draw(compute_slot_mapping_calls(preset, is_scattered=False))
    batch, positions = call.source, call["positions"].copy()
    places = (None, _just_past(call), -1, -(2**40), 2**31, 2**40, 2**63 - 1, -(2**63))
    misplaced = st.sampled_from(places)
    # A whole request's positions stay consecutive, which a loop may process as one run.
    are_requests = draw(st.booleans())
    for start, stop in itertools.pairwise(
        batch.starts if are_requests else range(batch.num_tokens + 1)
    ):
        beyond = draw(misplaced)
        if beyond is not None:
            positions[start:stop] = beyond + np.arange(stop - start)
    table = call["block_table"].copy()
    if draw(st.booleans()):
        table[:, :1] = draw(st.sampled_from((-1, 0)))  # block 0 is a block like any other
    call.arguments.pop("out", None)
    bad: Call = call.replacing(positions=positions, block_table=table)
    return bad


def _slot_or_none(call: Call, token: int) -> int:
    """Return `reference`'s slot for a single token, or -1 if it is refused."""
    starts = call.source.starts
    request = next(i for i in range(call.source.num_reqs) if starts[i] <= token < starts[i + 1])
    alone = call.replacing(
        block_table=call["block_table"][request : request + 1].copy(),
        query_start_loc=np.array([0, 1], np.int32),
        positions=call["positions"][token : token + 1].copy(),
    )
    try:
        return int(REFERENCE.lookup(call.function)(**alone.arguments)[0])
    except ValueError:
        return reference.PAD_SLOT_ID


@property_check(
    "compute_slot_mapping",
    _misplaced,
    goals={
        "unchecked: a position no block holds": lambda call: bool(
            call.source.num_tokens
            and max(call["positions"][: call.source.num_tokens].tolist()) >= 2**31
        ),
        "unchecked: a position just past the table": lambda call: (
            _just_past(call) in call["positions"][: call.source.num_tokens]
        ),
        "unchecked: a negative position": lambda call: bool(
            call.source.num_tokens and min(call["positions"][: call.source.num_tokens]) < 0
        ),
    },
    has_kernel=True,
    tests_invalid_inputs=True,  # an invalid call, which reference would reject
)
def test_a_misplaced_token_gets_no_slot(target: Target, call: Call) -> None:
    """Without checked mode a token that reference refuses gets -1, never a neighbour's slot."""
    got = Invocation(target, call).answer(seed=len(call["positions"]), checked=False).tolist()
    expected = [_slot_or_none(call, token) for token in range(call.source.num_tokens)]
    expected += [reference.PAD_SLOT_ID] * call.source.num_padding_tokens
    check_equal(target, call, expected, got)


@st.composite
def _in_the_largest_virtual_block(draw: st.DrawFn, _: Preset) -> Call:
    """Draw a call of one token in the second of two virtual blocks of the largest size."""
    size = 2**31 - 1  # a prime
    block_size, world = draw(st.sampled_from(((size, 1), (1, size))))
    position = draw(st.sampled_from((0, 1, size - 1)))
    arguments = {
        "block_table": np.array([[0, 1]], np.int32),
        "query_start_loc": np.array([0, 1], np.int32),
        "positions": np.array([size + position], np.int64),
        "block_size": block_size,
        "cp_world_size": world,
        "cp_rank": position % world,
    }
    return Call("compute_slot_mapping", arguments)


@property_check(
    "compute_slot_mapping", _in_the_largest_virtual_block, presets=[MINIMAL], has_kernel=True
)
def test_the_largest_virtual_block_is_taken(target: Target, call: Call) -> None:
    """A virtual block may have 2**31 - 1 positions over all ranks."""
    expected = Invocation(REFERENCE, call).run()
    check_equal(target, call, expected, Invocation(target, call).answer())


@property_check("map_to_kernel_blocks", map_to_kernel_blocks_calls)
def test_kernel_blocks_hold_the_same_tokens(target: Target, call: Call) -> None:
    """Each of the manager's blocks is mapped to its kernel blocks, in order."""
    count = call["blocks_per_kv_block"]
    mapped = Invocation(target, call).answer().tolist()
    flat = np.array(mapped, dtype=object).reshape(-1)
    owners = [block // count for block in flat]
    assert owners == [b for b in call["block_ids"].reshape(-1).tolist() for _ in range(count)]
    assert [block % count for block in flat] == list(range(count)) * (len(flat) // count)


@property_check("compute_slot_mapping", calls_in_place)
def test_a_rank_holds_what_its_interleave_says(target: Target, call: Call) -> None:
    """A token has a slot on the rank that its position belongs to, and on no other."""
    slots = Reader(target).answer(call).tolist()
    for token, slot in enumerate(slots[: call.source.num_tokens]):
        is_held = rank_of(call.source, int(call["positions"][token])) == call.source.layout.cp_rank
        assert (slot != reference.PAD_SLOT_ID) == is_held
