"""Slots: where each token's key and value are stored."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.pair import Pair
from conformance.harness.sizes import fit, rngs, sizes, vectors
from conformance.laws import batch_laws as laws
from conformance.laws.access import Half
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import Batch, Layout, batches, choices, deferred, layouts

if TYPE_CHECKING:
    from conformance.harness.targets import Target

PLACES: Final = ("in place", "in place", "mirrored", "anywhere", "on this rank")
"""The positions of tokens: their own, or others of their sequences."""

ROOM: Final = (None, None, None, 0, 1, 9)
"""By how much `out` is longer than the result; None for no `out`, 9 for any."""

DEFAULTS: Final = Layout(1).keywords()


def _layout(arguments: Arguments) -> Layout:
    return Layout(arguments["block_size"], **{k: arguments.get(k, v) for k, v in DEFAULTS.items()})


def _arguments(batch: Batch, _: object = None) -> Arguments:
    return {
        "block_table": batch.block_table,
        "query_start_loc": batch.query_start_loc(),
        "positions": batch.positions(),
        **vars(batch.layout),
    }


@st.composite
def slot_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw batches in all layouts; tokens at their own positions, or at any of their sequence."""
    layout = draw(layouts())
    batch_of_sizes = draw(batches(layout, longest=2**60))
    where, room = choices(draw, PLACES, ROOM)
    room = draw(sizes(0, 70)) if room == 9 else room
    left_out = {k for k, v in DEFAULTS.items() if vars(layout)[k] == v and draw(st.booleans())}

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        arguments = {k: v for k, v in _arguments(batch).items() if k not in left_out}
        places, lens = batch.places, batch.seq_lens[batch.owners]
        if where == "mirrored":
            places = lens - 1 - places
        elif where != "in place" and batch.num_tokens:
            places = draw(rngs()).integers(0, lens)
            if where == "on this rank":
                places = layout.on_rank(places)
        arguments["positions"][: batch.num_tokens] = places
        if room is not None:
            arguments["out"] = np.full(batch.num_actual_tokens + room, 77, np.int64)
        return arguments

    return deferred(contents)


def no_place(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let tokens have no block, row, request or position of their own, or `out` no memory."""
    table, starts = arguments["block_table"], arguments["query_start_loc"].copy()
    memory = np.pad(arguments["positions"], (0, 1))
    positions, past = memory[:-1], (1 + table.shape[1]) * _layout(arguments).virtual_block_size
    starts[-1] = len(positions) + 3
    wrong: Any = (
        {"out": memory[rng.randrange(2) :][: len(positions)], "positions": positions},
        {"query_start_loc": starts, "out": np.full(len(positions) + 9, 77)},
        {"query_start_loc": np.ones(1, np.int32), "block_table": np.zeros((0, 1), np.int32)},
        {"block_table": np.full_like(table, -1)},
        {"positions": positions + past},
    )
    change = rng.choice(wrong)
    # `out` is first, so that what is written is said to be written to it.
    return {**change, **arguments, **change}


def a_misplaced_token_gets_no_slot(target: Target, arguments: Arguments) -> None:
    """With checks off, a token that `reference` refuses gets -1, never a neighbour's slot."""
    starts, table = arguments["query_start_loc"], arguments["block_table"].copy()
    if starts[-1] > 64 or not target.has_checks:
        return
    rng, layout = np.random.default_rng(int(starts[-1]) + table.size), _layout(arguments)
    positions, tokens = arguments["positions"].copy(), np.arange(starts[-1])
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    past = table.shape[1] // layout.blocks_per_kv_block * layout.virtual_block_size
    past += layout.cp_rank * layout.cp_kv_cache_interleave_size  # would be on this rank
    far = np.array((past, past, past, -1, -(2**40), 2**31, 2**40, 2**63 - 1, -(2**63)))
    # A whole request's positions stay consecutive, which a loop may process as one run.
    first = starts[owners] if rng.random() < 0.5 else tokens
    is_far = rng.random(len(tokens))[first] < rng.choice((0.0, 0.3, 0.8))
    wrong = rng.choice(far, len(tokens))[first] + tokens - first
    positions[tokens[is_far]] = wrong[is_far]
    table[rng.random(table.shape) < rng.choice((0.0, 0.0, 0.5))] = -1
    bad = {**arguments, "positions": positions, "block_table": table}
    bad.pop("out", None)
    with target.running(checked=False):
        outcome = Pair(CONTRACTS[0], target, bad).outcome()
    assert outcome.error is None, f"raises {outcome.error!r} with checks off"
    expected = [-1] * len(positions)
    for token, request in enumerate(owners):
        one = {"block_table": table[[request]], "positions": positions[[token]]}
        alone = {**bad, **one, "query_start_loc": np.array([0, 1], np.int32)}
        with contextlib.suppress(ValueError):
            [expected[token]] = reference.compute_slot_mapping(**alone).tolist()
    assert outcome.value.tolist() == expected, (
        f"the slots of positions {positions.tolist()} in {table.tolist()} are "
        f"{outcome.value.tolist()}, expected {expected}"
    )


@st.composite
def kernel_block_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw ids of each dtype, up to the last that it can hold, in up to 33 dimensions."""
    dtype: Any = draw(st.sampled_from((np.int32, np.int64, np.int8, np.int16, np.uint8)))
    ndim = draw(st.sampled_from((1, 1, 1, 1, 2, 2, 3, 32, 33)))
    few = st.sampled_from((1, 2, 4, 16, 127, 128, 129, 255, 256, 257, 32_768, 32_769, 2**31 - 1))
    count, numbers = draw(sizes(1, 300) | few), np.iinfo(dtype).max + 1
    shape = [1] * ndim
    for axis in {*range(min(ndim, 3)), ndim - 1}:
        shape[axis] = draw(sizes(0, 8193 if ndim == 1 else 300, small=3))
    if count > min(numbers, 40_000):  # block 0 does not fit, or would be too large
        shape[draw(st.integers(0, ndim - 1))] = 0
    rows = 8193 if ndim == 1 else 512  # `reference` takes 2 us for each row
    limit = min(rows, 40_000 // count) if all(shape) else rows
    shape = [*map(min, shape, fit(limit, *(max(n, 1) for n in shape)))]
    last = max(numbers // count - 1, 0)
    most = draw(st.sampled_from((min(9, last), last)))
    ids = vectors(math.prod(shape), 0, most, dtype, rare=(last,))
    return ids.map(lambda x: {"block_ids": x.reshape(shape).copy(), "blocks_per_kv_block": count})


def _slots(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    return [Part(dataclasses.replace(batch.metadata(), slot_mapping=result))]


def _managers_table(batch: Batch, _: object) -> Arguments:
    """Return the call that maps the table of a batch from the manager's blocks."""
    managers, layout = laws.in_managers_blocks(batch).block_table, batch.layout
    needed = -(-batch.seq_lens // layout.block_size)
    ids = np.zeros_like(managers)
    is_used = np.arange(managers.shape[1]) < needed[:, None]
    ids[: len(needed)][is_used] = managers[: len(needed)][is_used]
    return {"block_ids": ids, "blocks_per_kv_block": layout.blocks_per_kv_block}


def _mapped_table(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    return [Part(dataclasses.replace(batch.metadata(), block_table_tensor=result))]


CONTRACTS = [
    Contract(
        function="compute_slot_mapping",
        examples=1.6,
        calls=slot_calls(),
        specials=(no_place,),
        checked_only=r"shares memory|but positions has",
        properties=(a_misplaced_token_gets_no_slot,),
        laws=(
            laws.slots_are_distinct,
            laws.writes_are_read_back,
            laws.ranks_partition,
            laws.kernel_blocks_rename,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_arguments, _slots, shows=Half.WRITES),
        hard_cases={
            "several ranks and kernel blocks": lambda args: (
                _layout(args).cp_world_size > 1 and _layout(args).blocks_per_kv_block > 1
            ),
            "a slot past 2**31": lambda args: (
                int(args["block_table"].max(initial=0)) * args["block_size"] >= 2**31
            ),
            "more than 256 columns that are read": lambda args: bool(
                max(args["positions"], default=0) * _layout(args).blocks_per_kv_block
                >= 256 * _layout(args).virtual_block_size
            ),
            "more than 1,024 tokens": lambda args: args["query_start_loc"][-1] > 1024,
        },
        has_kernel=True,
    ),
    Contract(
        function="map_to_kernel_blocks",
        is_affordable=lambda args: not 1000 < args["blocks_per_kv_block"] < 2**31,
        calls=kernel_block_calls(),
        laws=(
            laws.kernel_blocks_rename,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_managers_table, _mapped_table, shows=Half.READS, has_ranks=False),
        hard_cases={
            "block 0 takes all that the dtype can hold": lambda args: (
                np.iinfo(args["block_ids"].dtype).max + 1 == args["blocks_per_kv_block"]
                and args["block_ids"].size > 0
            ),
            "no ids, and block 0 would take more": lambda args: (
                np.iinfo(args["block_ids"].dtype).max + 1 < args["blocks_per_kv_block"]
            ),
            "more than 32 dimensions": lambda args: args["block_ids"].ndim > 32,
            "more than 32,768 kernel blocks of a block": lambda args: (
                32_768 < args["blocks_per_kv_block"] < 2**31 and args["block_ids"].size > 0
            ),
        },
    ),
]
