"""Context parallelism: the part of each sequence that a rank holds."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from conformance.harness.contract import Arguments, Contract
from conformance.harness.sizes import fit, sizes, vectors
from conformance.laws import batch_laws as laws
from conformance.laws.access import Access, Half
from conformance.laws.batches import MAX_INT32, Batch, choices, deferred


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw lengths up to the greatest, often near a multiple of a round of the ranks."""
    number, ranks, interleave = draw(sizes()), draw(sizes(1, 2100)), draw(sizes(1, 2**14))
    kind, rank, room = choices(draw, range(10), (0.0, None, 1.0, 0.5), (None, None, None, 0, 1, 9))
    if kind == 9:
        # As many ranks would do as well, but whoever computes all of them runs out of memory.
        ranks, interleave = (1, MAX_INT32) if number % 2 else (3, MAX_INT32 // 3)
    elif kind == 8:
        ranks = 1
    room = draw(sizes(0, 70)) if room == 9 else room
    rank = None if rank is None else int((ranks - 1) * rank)
    if rank is None:
        number, ranks = fit(40_000, number, ranks)
    round_of_ranks = ranks * interleave
    most = draw(st.sampled_from((20, min(4 * round_of_ranks, MAX_INT32), MAX_INT32)))
    edges = [k * round_of_ranks + d for k in (0, 1, 2, 9) for d in (-1, 0, 1)] + [MAX_INT32]
    edges = [edge for edge in edges if 0 <= edge <= MAX_INT32]
    options = {"dcp_size": ranks, "dcp_rank": rank, "cp_kv_cache_interleave_size": interleave}
    defaults = {"dcp_size": 1, "dcp_rank": None, "cp_kv_cache_interleave_size": 1}
    options = {k: v for k, v in options.items() if v != defaults[k] or draw(st.booleans())}

    def contents(draw: st.DrawFn) -> Arguments:
        lens = draw(vectors(number, 0, most, np.int32, rare=edges))
        arguments = {"seq_lens": lens, **options}
        if room is not None:
            columns = (ranks,) if rank is None else ()
            arguments["out"] = np.full((number + room, *columns), 77, np.int32)
        return arguments

    return deferred(contents)


@st.composite
def buffer_calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw lengths up to the greatest, and buffers as long as the batch or longer."""
    number, ranks, interleave = draw(sizes()), draw(sizes(1, 2100)), draw(sizes(1, 2**14))
    rank, more, room, padded = choices(
        draw, (0.0, 1.0, 0.5), (0, 0, 1, 9), (0, 0, 1, 9), (None, 0.0, 1.0, 0.5)
    )
    room = draw(sizes(0, 300)) if room == 9 else room
    round_of_ranks = ranks * interleave
    most = draw(st.sampled_from((20, min(4 * round_of_ranks, MAX_INT32), MAX_INT32)))
    edges = [k * round_of_ranks + d for k in (0, 1, 2) for d in (-1, 0, 1)] + [MAX_INT32]
    edges = [edge for edge in edges if 0 <= edge <= MAX_INT32]

    def contents(draw: st.DrawFn) -> Arguments:
        lens = draw(vectors(number, 0, most, np.int32, rare=edges))
        given = {} if padded is None else {"num_reqs_padded": number + int(room * padded)}
        return {
            "dcp_local_seq_lens": np.full(number + room, 77, np.int32),
            "seq_lens": np.pad(lens, (0, more), constant_values=-77),
            "num_reqs": number,
            "dcp_size": ranks,
            "dcp_rank": int((ranks - 1) * rank),
            "cp_interleave": interleave,
            **given,
        }

    return deferred(contents)


def the_buffer_is_the_input(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the buffer overlap the lengths, all or a part of them."""
    number = arguments["num_reqs"]
    memory = np.pad(arguments["seq_lens"][:number], (0, 1))
    buffer = memory[rng.randrange(2) :][:number]
    return {**arguments, "dcp_local_seq_lens": buffer, "seq_lens": memory[:-1]}


def out_is_the_input(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let `out` overlap the lengths, all or a part of them."""
    memory = np.pad(arguments["seq_lens"], (0, 1))
    lens, out = memory[:-1], memory[rng.randrange(2) :][: len(memory) - 1]
    # `out` is first, so that what is written is said to be written to it.
    return {"out": out, "seq_lens": lens, "dcp_size": 1, "dcp_rank": 0}


def _lengths(batch: Batch, _: object) -> Arguments:
    return {
        "seq_lens": batch.seq_lens.astype(np.int32),
        "dcp_size": batch.layout.cp_world_size,
        "cp_kv_cache_interleave_size": batch.layout.cp_kv_cache_interleave_size,
    }


def _held_keys(batch: Batch, _: Arguments, result: np.ndarray) -> list[Access]:
    layout, lens = batch.layout, result[:, batch.layout.cp_rank]
    numbers = np.arange(lens.max(initial=0))
    interleave = layout.cp_kv_cache_interleave_size
    turns = numbers // interleave * layout.cp_world_size * interleave
    held = layout.on_rank(turns + numbers % interleave).tolist()
    reads = {
        (token, key, 0)
        for token, request in enumerate(batch.owners.tolist())
        for key in held[: lens[request]]
    }
    return [Access(frozenset(reads))]


CONTRACTS = [
    Contract(
        function="get_dcp_local_seq_lens",
        examples=1.6,
        has_kernel=True,  # another path on a device
        is_affordable=lambda args: (
            args.get("dcp_rank") is not None or not 5000 < args["dcp_size"] < 2**31
        ),
        calls=calls(),
        dense=frozenset({"out"}),
        specials=(out_is_the_input,),
        checked_only="shares memory",
        laws=(laws.ranks_partition, laws.padding_adds_nothing, laws.any_order_means_the_same),
        # Each token reads its whole sequence, which shows a length that is too large.
        description=laws.Description(_lengths, _held_keys, shows=Half.READS, causal=False),
        hard_cases={
            "every rank's length, near 2**31": lambda args: (
                args.get("dcp_rank") is None and max(args["seq_lens"], default=0) > 2**30
            ),
            "the last rank": lambda args: args.get("dcp_rank") == args.get("dcp_size", 1) - 1 > 0,
            "more than 256 ranks": lambda args: args.get("dcp_size", 1) > 256,
            "out is longer": lambda args: len(args.get("out", ())) > len(args["seq_lens"]),
        },
    ),
    Contract(
        function="prepare_dcp_local_seq_lens",
        has_kernel=True,
        calls=buffer_calls(),
        written=frozenset({"dcp_local_seq_lens"}),
        dense=frozenset({"dcp_local_seq_lens"}),
        specials=(the_buffer_is_the_input,),
        checked_only="shares memory",
        hard_cases={
            "the last rank, and padding that is not returned": lambda args: (
                args["dcp_rank"] == args["dcp_size"] - 1 > 0
                and args["num_reqs"]
                < args.get("num_reqs_padded", 0)
                < len(args["dcp_local_seq_lens"])
            ),
        },
    ),
]
