"""Slots: where each token's key and value are stored."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.pair import Pair
from conformance.harness.sizes import rngs, sizes, vectors
from conformance.laws.access import Half
from conformance.laws.batch_laws import (
    Description,
    Part,
    any_order_means_the_same,
    attention_is_dense,
    in_managers_blocks,
    kernel_blocks_rename,
    padding_adds_nothing,
    ranks_partition,
    slots_are_distinct,
    writes_are_read_back,
)
from conformance.laws.batches import (
    Batch,
    Layout,
    batches,
    choices,
    deferred,
    layouts,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target

PLACES: Final = ("in place", "in place", "mirrored", "anywhere", "on this rank")
"""The positions of tokens: their own, or others of their sequences."""

ROOM: Final = (None, None, None, 0, 1, 9)
"""By how much `out` is longer than the result; None for no `out`, 9 for any."""

DEFAULTS: Final = Layout(1).keywords()


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
    left_out = {
        name
        for name, value in DEFAULTS.items()
        if getattr(layout, name) == value and draw(st.booleans())
    }

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


def out_is_an_input(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let `out` overlap the positions, all or a part of them."""
    memory, shift = arguments["positions"], rng.randrange(2)
    if len(memory) <= shift or arguments["query_start_loc"][-1] > len(memory) - shift:
        return None
    # `out` is first, so that what is written is said to be written to it.
    out = {"out": memory[shift:], "positions": memory[: len(memory) - shift]}
    return {**out, **arguments, **out}


def no_positions(arguments: Arguments, _: random.Random) -> Arguments | None:
    """Let the starts be those of a batch with more tokens than there are positions."""
    starts, positions = arguments["query_start_loc"].copy(), arguments["positions"]
    if len(starts) < 2 or starts[-1] > 2**30:
        return None
    starts[-1] = len(positions) + 3
    return {**arguments, "query_start_loc": starts, "out": np.full(len(positions) + 9, 77)}


def no_place(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let no row have a block, no position be in the table, or no request be there."""
    blocks = (1 + arguments["block_table"].shape[1]) * arguments.get("cp_world_size", 1)
    table = np.zeros((0, 1), np.int32)
    wrong = (
        {"block_table": np.full_like(arguments["block_table"], -1)},
        {"positions": arguments["positions"] + arguments["block_size"] * blocks},
        {"block_table": table, "query_start_loc": np.ones(1, np.int32)},
    )
    return {**arguments, **rng.choice(wrong)}


def a_misplaced_token_gets_no_slot(target: Target, arguments: Arguments) -> None:
    """With checks off, a token that `reference` refuses gets -1, never a neighbour's slot."""
    starts, table = arguments["query_start_loc"].tolist(), arguments["block_table"].copy()
    arguments = {name: value for name, value in arguments.items() if name != "out"}
    if starts[-1] > 64:
        return
    rng = np.random.default_rng(starts[-1] + table.size)
    positions = arguments["positions"].copy()
    rank, world = arguments.get("cp_rank", 0), arguments.get("cp_world_size", 1)
    past = table.shape[1] // _pieces(arguments) * arguments["block_size"] * world
    past += rank * arguments.get("cp_kv_cache_interleave_size", 1)  # would be on this rank
    far = np.array((past, past, past, -1, -(2**40), 2**31, 2**40, 2**63 - 1, -(2**63)))
    # A whole request's positions stay consecutive, which a loop may process as one run.
    edges = starts if rng.random() < 0.5 else range(starts[-1] + 1)
    rate = rng.choice((0.0, 0.3, 0.8))
    for start, stop in itertools.pairwise(edges):
        if rng.random() < rate:
            with np.errstate(over="ignore"):
                positions[start:stop] = rng.choice(far) + np.arange(stop - start)
    table[rng.random(table.shape) < rng.choice((0.0, 0.0, 0.5))] = -1
    bad = {**arguments, "positions": positions, "block_table": table}
    with target.running(checked=False):
        outcome = Pair(CONTRACTS[0], target, bad).outcome()
    assert outcome.error is None, f"raises {outcome.error!r} with checks off"
    expected = [-1] * len(positions)
    for request, (start, stop) in enumerate(itertools.pairwise(starts)):
        for token in range(start, stop):
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
    count = draw(sizes(1, 300) | few)
    last = (int(np.iinfo(dtype).max) + 1) // count - 1
    shape = [1] * ndim
    for axis in {*range(min(ndim, 3)), ndim - 1}:
        shape[axis] = draw(sizes(0, 8193 if ndim == 1 else 300, small=3))
    if last < 0:  # not even block 0 fits, so there are no ids
        shape[draw(st.integers(0, ndim - 1))] = 0
    most = 512 if ndim > 1 else 8193  # `reference` takes 2 us for each row
    while math.prod(max(n, 1) for n in shape) > most or math.prod(shape) * count > 40_000:
        if max(shape) < 2:
            shape[-1] = 0
            break
        shape[shape.index(max(shape))] //= 2
    most = draw(st.sampled_from((min(9, last), last)))
    size = math.prod(shape)
    return deferred(
        lambda draw: {
            "block_ids": draw(vectors(size, 0, max(most, 0), dtype, rare=(max(last, 0),)))
            .reshape(shape)
            .copy(),
            "blocks_per_kv_block": count,
        }
    )


def _slots(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    return [Part(dataclasses.replace(batch.metadata(), slot_mapping=result))]


def _managers_table(batch: Batch, _: object) -> Arguments:
    """Return the call that maps the table of a batch from the manager's blocks."""
    managers, layout = in_managers_blocks(batch).block_table, batch.layout
    needed = -(-batch.seq_lens // layout.block_size)
    ids = np.zeros_like(managers)
    is_used = np.arange(managers.shape[1]) < needed[:, None]
    ids[: len(needed)][is_used] = managers[: len(needed)][is_used]
    return {"block_ids": ids, "blocks_per_kv_block": layout.blocks_per_kv_block}


def _mapped_table(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    return [Part(dataclasses.replace(batch.metadata(), block_table_tensor=result))]


def _pieces(arguments: Arguments) -> int:
    size: int = arguments["block_size"]
    return size // (arguments.get("kernel_block_size") or size)


CONTRACTS = [
    Contract(
        function="compute_slot_mapping",
        calls=slot_calls(),
        specials=(out_is_an_input, no_place, no_positions),
        checked_only=r"shares memory|but positions has",
        properties=(a_misplaced_token_gets_no_slot,),
        laws=(
            slots_are_distinct,
            writes_are_read_back,
            ranks_partition,
            kernel_blocks_rename,
            padding_adds_nothing,
            any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_arguments, _slots, shows=Half.WRITES),
        hard_cases={
            "several ranks and kernel blocks": lambda arguments: (
                arguments.get("cp_world_size", 1) > 1 and _pieces(arguments) > 1
            ),
            "a slot past 2**31": lambda arguments: (
                int(arguments["block_table"].max(initial=0)) * arguments["block_size"] >= 2**31
            ),
            "more than 256 columns that are read": lambda arguments: bool(
                max(arguments["positions"], default=0) * _pieces(arguments)
                >= 256 * arguments["block_size"] * arguments.get("cp_world_size", 1)
            ),
            "more than 1,024 tokens": lambda arguments: arguments["query_start_loc"][-1] > 1024,
            "out is longer": lambda arguments: (
                len(arguments.get("out", ())) > len(arguments["positions"])
            ),
        },
        has_kernel=True,
    ),
    Contract(
        function="map_to_kernel_blocks",
        is_affordable=lambda arguments: not 1000 < arguments["blocks_per_kv_block"] < 2**31,
        calls=kernel_block_calls(),
        laws=(
            kernel_blocks_rename,
            padding_adds_nothing,
            any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_managers_table, _mapped_table, shows=Half.READS, has_ranks=False),
        hard_cases={
            "block 0 takes all that the dtype can hold": lambda arguments: (
                arguments["block_ids"].size > 0
                and np.iinfo(arguments["block_ids"].dtype).max + 1
                == arguments["blocks_per_kv_block"]
            ),
            "no ids, and block 0 would take more": lambda arguments: (
                np.iinfo(arguments["block_ids"].dtype).max + 1 < arguments["blocks_per_kv_block"]
            ),
            "more than 32 dimensions": lambda arguments: arguments["block_ids"].ndim > 32,
        },
    ),
]
