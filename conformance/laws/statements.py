"""The laws: what is true of every function of a batch that says it obeys them.

A batch means an access relation, and each function keeps it or transforms it in a stated way. Each
statement stands here once, about a `Trial`: a target's answer to one call, read as a relation. How
a function's calls and answers speak of a batch is its `Meaning`, in `conformance.interpretations`.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from conformance.laws.access import About, Access
from conformance.laws.changes import (
    AsItIs,
    InManagersBlocks,
    InOrder,
    OnRank,
    Padded,
    Unpadded,
)
from conformance.laws.law import PAIRS, law
from conformance.laws.law_case import LawCase
from conformance.strategies.batches import Batch, is_padded
from conformance.strategies.presets import MINIMAL


def _some_wait(case: LawCase) -> bool:
    """Tell whether the batch has a request with tokens and a context."""
    lens = zip(case.batch.query_lens, case.batch.num_computed_tokens, strict=True)
    return any(q and c for q, c in lens)


# What is written and where.


@law(about=About.WRITES, situations={"several tokens": lambda case: case.batch.num_tokens > 1})
def slots_are_distinct(case: LawCase) -> None:
    """No two new tokens of a step get one slot of a cache."""
    slots = Counter(slot for _, slot in Access.union(case.means()).writes)
    twice = [slot for slot, count in slots.items() if count > 1]
    if twice:
        raise AssertionError(f"slot {min(twice)} is given to {slots[min(twice)]} tokens")


@law(presets=PAIRS, situations={"a request with tokens and a context": _some_wait})
def writes_are_read_back(case: LawCase) -> None:
    """What a request writes at a position is the slot that it later reads there."""
    got = Access.union(case.means())
    reads = got.reads
    if About.READS not in case.interpretation.tells:
        reads = Access.union(case.meant()).reads
    own = {(token, slot) for token, key, slot in reads if key == case.positions[token]}
    Access(writes=got.writes).must_be(Access(writes=frozenset(own)))


# The batch said anew, or a piece of it: the function's meaning says which tokens are kept.


def _means_what_it_keeps(case: LawCase) -> None:
    Access.union(case.means()).must_be(case.kept())


def _kept_counts(case: LawCase) -> list[tuple[int, int]]:
    """Return how many tokens of each request the answer is about, and how many it has."""
    everyone = Access(writes=frozenset((token, 0) for token in case.positions))
    owner = _owners(case.batch)
    kept = Counter(owner[token] for token in case.interpretation.keeps(case.call, everyone).tokens)
    return [(kept[i], count) for i, count in enumerate(case.batch.query_lens)]


def _leaves_out(case: LawCase) -> bool:
    """Tell whether the answer is about some of the tokens, and not about others."""
    counts = _kept_counts(case)
    return 0 < sum(kept for kept, _ in counts) < sum(count for _, count in counts)


@law(
    presets=PAIRS,
    situations={
        "several groups of unlike block sizes": lambda case: (
            len({batch.layout.block_size for batch in case.batches}) > 1
        )
    },
)
def each_group_sees_its_own_batch(case: LawCase) -> None:
    """What a KV cache group reads and writes is its batch's: its own blocks, its own slots."""
    for got, wanted in zip(case.means(), case.meant(), strict=True):
        got.must_be(wanted)


@law(
    presets=PAIRS,
    situations={
        "tokens are left out": _leaves_out,
        "idle requests stand behind others": lambda case: (
            is_padded(case.batch) and case.batch.num_tokens > 0
        ),
    },
)
def unpadding_removes_nothing(case: LawCase) -> None:
    """What the kept requests read and write is what they read and wrote in the whole batch."""
    _means_what_it_keeps(case)


@law(presets=PAIRS, situations={"tokens are left out": _leaves_out})
def a_slice_keeps_its_tokens(case: LawCase) -> None:
    """The tokens of a slice of a batch read and write in it what they do in the batch."""
    _means_what_it_keeps(case)


@law(
    presets=PAIRS,
    situations={
        "tokens are left out": _leaves_out,
        "several of a request, not all": lambda case: any(
            1 < kept < count for kept, count in _kept_counts(case)
        ),
        "none of a request with tokens, some of another": lambda case: (
            _leaves_out(case) and any(kept == 0 < count for kept, count in _kept_counts(case))
        ),
    },
)
def wanted_keep_their_reads(case: LawCase) -> None:
    """Wanted tokens that are the last of their requests read the keys they read in the batch."""
    _means_what_it_keeps(case)


@law(presets=PAIRS, situations={"several requests": lambda case: case.batch.num_reqs > 1})
def reordering_renames(case: LawCase) -> None:
    """A reordered batch reads and writes what it did, under its tokens' new names."""
    _means_what_it_keeps(case)


def _chunk(case: LawCase) -> int:
    chunk: int = case.call.arguments["attn_chunk_size"]
    return chunk


@law(
    presets=PAIRS,
    situations={
        "a request with tokens in two chunks": lambda case: any(
            q and c // _chunk(case) < (c + q - 1) // _chunk(case)
            for q, c in zip(case.batch.query_lens, case.batch.num_computed_tokens, strict=True)
        ),
        "a batch that is not causal": lambda case: not case.batch.causal,
    },
)
def chunks_restrict(case: LawCase) -> None:
    """Virtual batches read just those keys, up to a query's own, that lie in the query's chunk."""
    chunk, positions = _chunk(case), case.positions
    [whole] = case.meant()
    Access.union(case.means()).must_be(
        whole.restricted(
            lambda token, key: key <= positions[token] and key // chunk == positions[token] // chunk
        )
    )


# The batch in parts.


@law(presets=PAIRS, situations={"several parts": lambda case: case.num_parts > 1})
def split_partitions(case: LawCase) -> None:
    """The parts of a batch read and write what it does, each token in one of them."""
    parts = case.means()
    holders = Counter(token for part in parts for token in {t for t, *_ in part.reads})
    twice = [token for token, count in holders.items() if count > 1]
    if twice:
        raise AssertionError(f"token {min(twice)} is in {holders[min(twice)]} parts")
    Access.union(parts).must_be(case.kept())


@law(situations={"several ranks": lambda case: case.batch.layout.cp_world_size > 1})
def ranks_partition(case: LawCase) -> None:
    """A pair of a token and a key is one rank's, and so is the place of a new token."""
    parts = [
        part for rank in range(case.batch.layout.cp_world_size) for part in case.means(OnRank(rank))
    ]
    shown = case.about & case.interpretation.tells
    if About.READS in shown:
        pairs = Counter((token, key) for part in parts for token, key, _ in part.reads)
        _held_once("token {} and key position {}", pairs, _pairs(case))
    if About.WRITES in shown:
        tokens = Counter((token,) for part in parts for token, _ in part.writes)
        _held_once("token {}", tokens, {(token,) for token in case.positions})


def _held_once(words: str, holders: Counter[Any], wanted: set[Any]) -> None:
    """Raise unless what is wanted, and nothing else, is held by one rank."""
    for held in sorted(wanted | holders.keys()):
        expected = int(held in wanted)
        if holders[held] != expected:
            raise AssertionError(
                f"{words.format(*held)}: held by {holders[held]} ranks, but should be by {expected}"
            )


def _pairs(case: LawCase) -> set[tuple[int, int]]:
    """Return the pairs of a token and a key position that it reads."""
    owner, seq_lens, causal = _owners(case.batch), case.batch.seq_lens, case.batch.causal
    return {
        (token, key)
        for token, position in case.positions.items()
        for key in range(position + 1 if causal else seq_lens[owner[token]])
    }


BLOCK_M = 8
"""Tokens of one program of a causal convolution."""


@law(situations={"a request of several programs": lambda case: _longest(case.batch) > BLOCK_M})
def programs_cover(case: LawCase) -> None:
    """The programs cover each token exactly once, in runs of at most 8 of one sequence."""
    runs = [sorted(token for token, _ in part.writes) for part in case.means()]
    owner = _owners(case.batch)
    covered = [token for run in runs for token in run]
    if covered != list(range(case.batch.num_tokens)):
        raise AssertionError(f"the programs cover {covered[:40]}, in this order")
    for run in runs:
        is_run = all(b == a + 1 for a, b in pairwise(run))
        if not (1 <= len(run) <= BLOCK_M and is_run and len({owner[token] for token in run}) == 1):
            raise AssertionError(f"a program covers {run}")


def _longest(batch: Batch) -> int:
    return max(batch.query_lens, default=0)


def _owners(batch: Batch) -> list[int]:
    """Return the request of each token."""
    return [i for i, count in enumerate(batch.query_lens) for _ in range(count)]


# The same batch told in another way.

PADDINGS = st.builds(
    Padded, st.sampled_from(((0,), (5, 0), (), (1, 0, 5))), st.sampled_from((2, 0, 1))
)
"""Padded requests and tokens; lengths 1 and 5 are what an old step left."""


@law(
    presets=(MINIMAL,),
    in_simulator=False,
    choices=PADDINGS,
    situations={
        "a batch with tokens gets padded requests": lambda case: (
            case.batch.num_tokens > 0 and len(case.choice.stale_lens) > 0
        ),
        "a batch with tokens gets padded tokens": lambda case: (
            case.batch.num_tokens > 0 and case.choice.num_tokens > 0
        ),
        "padding is added to padding": lambda case: (
            is_padded(case.batch) and len(case.choice.stale_lens) > 0
        ),
    },
)
def padding_adds_nothing(case: LawCase) -> None:
    """With padded requests and tokens added, an answer means part by part what it did without."""
    wanted, got = (_filled(case.means(change)) for change in (Unpadded(), case.choice))
    if len(wanted) != len(got):
        raise AssertionError(f"{len(got)} parts with padding, but {len(wanted)} without")
    for without, with_it in zip(wanted, got, strict=True):
        with_it.must_be(without)


def _filled(parts: list[Access]) -> list[Access]:
    """Return parts without the empty ones at the end, which hold nothing but padding."""
    count = max((i + 1 for i, part in enumerate(parts) if part), default=0)
    return parts[:count]


def _is_moved(case: LawCase) -> bool:
    order = case.choice.order(case.batch)
    return any(i != at and case.batch.query_lens[i] for at, i in enumerate(order))


@law(
    presets=(MINIMAL,),
    in_simulator=False,
    choices=st.builds(InOrder, st.integers(0, 2**16)),
    situations={"a request with tokens changes its place": _is_moved},
)
def any_order_means_the_same(case: LawCase) -> None:
    """With its requests in another order a batch means the same, under its tokens' new names."""
    Access.union(case.means(case.choice)).must_be(Access.union(case.means(AsItIs())))


@law(
    situations={
        "kernel blocks split the manager's": lambda case: (
            case.batch.layout.blocks_per_kv_block > 1 and case.batch.num_tokens > 0
        )
    }
)
def kernel_blocks_rename(case: LawCase) -> None:
    """A slot is the same, whether a table lists the manager's blocks or the kernel's pieces."""
    Access.union(case.means()).must_be(Access.union(case.means(InManagersBlocks())))
