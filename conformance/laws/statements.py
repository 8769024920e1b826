"""The laws: properties of functions of a batch, stated once for all functions.

A batch has an access relation, which each function preserves or changes in a stated way. A law is
a statement about a `LawCase`: the result of one call, read as an access relation. A function's
`Interpretation`, next to its contract, describes how its arguments and results are read.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from conformance.coverage.presets import FEW_PAIRS, MINIMAL
from conformance.laws.access import Access, Half
from conformance.laws.changes import Change, InManagersBlocks, InOrder, OnRank, Padded, Unpadded
from conformance.laws.law import Law, LawCase, law
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, is_padded

PAIRS = (MINIMAL, FEW_PAIRS)
"""Sizes at which all pairs of a token and a key can be listed."""


def _has_context(case: LawCase) -> bool:
    """Return whether a request has both new tokens and a context."""
    lens = zip(case.batch.query_lens, case.batch.num_computed_tokens, strict=True)
    return any(q and c for q, c in lens)


# Writes.


@law(half=Half.WRITES, goals={"several tokens": lambda case: case.batch.num_tokens > 1})
def slots_are_distinct(case: LawCase) -> None:
    """No two new tokens of a step get the same slot of a cache."""
    slots = Counter(slot for _, slot in Access.union(case.result_access()).writes)
    twice = [slot for slot, count in slots.items() if count > 1]
    if twice:
        raise AssertionError(f"slot {min(twice)} is given to {slots[min(twice)]} tokens")


@law(presets=PAIRS, goals={"a request with tokens and a context": _has_context})
def writes_are_read_back(case: LawCase) -> None:
    """A request reads each of its positions from the slot that it wrote it to."""
    got = Access.union(case.result_access())
    reads = got.reads
    if Half.READS not in case.interpretation.shows:
        reads = Access.union(case.batch_access()).reads
    got.only(Half.WRITES).assert_equal(Access(reads).read_back(case.positions))


# The batch rewritten, or a part of it; the interpretation selects the tokens of the part.


def _assert_as_expected(case: LawCase) -> None:
    Access.union(case.result_access()).assert_equal(case.expected_access())


def _selected_counts(case: LawCase) -> list[tuple[int, int]]:
    """Return for each request how many tokens are in the result, and how many in the batch."""
    everything = Access(writes=frozenset((token, 0) for token in case.positions))
    owner = _owners(case.batch)
    selected = case.interpretation.selects(case.call, everything).tokens
    counts = Counter(owner[token] for token in selected)
    return [(counts[i], count) for i, count in enumerate(case.batch.query_lens)]


def _leaves_out(case: LawCase) -> bool:
    """Return whether the result has some of the tokens, but not all."""
    counts = _selected_counts(case)
    return 0 < sum(selected for selected, _ in counts) < sum(count for _, count in counts)


@law(
    presets=PAIRS,
    goals={
        "several groups of different block sizes": lambda case: (
            len({batch.layout.block_size for batch in case.batches}) > 1
        )
    },
)
def each_group_sees_its_own_batch(case: LawCase) -> None:
    """Each KV cache group reads and writes the blocks and slots of its own batch."""
    for actual, expected in zip(case.result_access(), case.batch_access(), strict=True):
        actual.assert_equal(expected)


@law(
    presets=PAIRS,
    goals={
        "tokens are left out": _leaves_out,
        "idle requests come after others": lambda case: (
            is_padded(case.batch) and case.batch.num_tokens > 0
        ),
    },
)
def unpadding_removes_nothing(case: LawCase) -> None:
    """The remaining requests read and write what they do in the padded batch."""
    _assert_as_expected(case)


@law(presets=PAIRS, goals={"tokens are left out": _leaves_out})
def a_slice_keeps_its_tokens(case: LawCase) -> None:
    """The tokens of a slice read and write what they do in the whole batch."""
    _assert_as_expected(case)


@law(
    presets=PAIRS,
    goals={
        "tokens are left out": _leaves_out,
        "several of a request, not all": lambda case: any(
            1 < selected < count for selected, count in _selected_counts(case)
        ),
        "none of a request with tokens, some of another": lambda case: (
            _leaves_out(case)
            and any(selected == 0 < count for selected, count in _selected_counts(case))
        ),
    },
)
def logits_tokens_keep_their_reads(case: LawCase) -> None:
    """Tokens with logits that are the last of their requests read the same keys as before."""
    _assert_as_expected(case)


@law(presets=PAIRS, goals={"several requests": lambda case: case.batch.num_reqs > 1})
def reordering_renames(case: LawCase) -> None:
    """Each token of a reordered batch reads and writes what it did before."""
    _assert_as_expected(case)


def _chunk(case: LawCase) -> int:
    chunk: int = case.call["attn_chunk_size"]
    return chunk


@law(
    presets=PAIRS,
    goals={
        "a request with tokens in two chunks": lambda case: any(
            q and c // _chunk(case) < (c + q - 1) // _chunk(case)
            for q, c in zip(case.batch.query_lens, case.batch.num_computed_tokens, strict=True)
        ),
        "a batch that is not causal": lambda case: not case.batch.causal,
    },
)
def chunks_restrict(case: LawCase) -> None:
    """In virtual batches, each query reads exactly the keys of its chunk, up to its own."""
    [whole] = case.batch_access()
    expected = whole.within_chunks(_chunk(case), case.positions)
    Access.union(case.result_access()).assert_equal(expected)


# The batch in parts.


@law(presets=PAIRS, goals={"several parts": lambda case: case.num_parts > 1})
def split_partitions(case: LawCase) -> None:
    """The parts together read and write what the batch does; each token is in one part."""
    Access.partition(case.result_access()).assert_equal(case.expected_access())


@law(goals={"several ranks": lambda case: case.batch.layout.cp_world_size > 1})
def ranks_partition(case: LawCase) -> None:
    """Exactly one rank holds each pair of a token and a key, and the slot of each new token."""
    parts = [
        part
        for rank in range(case.batch.layout.cp_world_size)
        for part in case.result_access(OnRank(rank))
    ]
    shown = case.half & case.interpretation.shows
    if Half.READS in shown:
        pairs = Counter((token, key) for part in parts for token, key, _ in part.reads)
        _assert_held_once("token {} and key position {}", pairs, _pairs(case))
    if Half.WRITES in shown:
        tokens = Counter((token,) for part in parts for token, _ in part.writes)
        _assert_held_once("token {}", tokens, {(token,) for token in case.positions})


def _assert_held_once(words: str, holders: Counter[Any], expected: set[Any]) -> None:
    """Raise unless exactly one rank holds each expected item, and none holds others."""
    for held in sorted(expected | holders.keys()):
        num_ranks = int(held in expected)
        if holders[held] != num_ranks:
            raise AssertionError(
                f"{words.format(*held)}: held by {holders[held]} ranks, expected {num_ranks}"
            )


def _pairs(case: LawCase) -> set[tuple[int, int]]:
    """Return all pairs of a token and a key position that it reads."""
    owner, seq_lens, causal = _owners(case.batch), case.batch.seq_lens, case.batch.causal
    return {
        (token, key)
        for token, position in case.positions.items()
        for key in range(position + 1 if causal else seq_lens[owner[token]])
    }


BLOCK_M = 8
"""Tokens of one program of a causal convolution."""


@law(goals={"a request of several programs": lambda case: _longest(case.batch) > BLOCK_M})
def programs_cover(case: LawCase) -> None:
    """The programs cover each token exactly once, in runs of at most 8 tokens of one sequence."""
    runs = [sorted(token for token, _ in part.writes) for part in case.result_access()]
    owner = _owners(case.batch)
    covered = [token for run in runs for token in run]
    if covered != list(range(case.batch.num_tokens)):
        raise AssertionError(
            f"the programs cover the tokens {covered[:40]}, but should cover each of "
            f"{case.batch.num_tokens} tokens once, in order"
        )
    for run in runs:
        is_run = all(b == a + 1 for a, b in pairwise(run))
        if not (1 <= len(run) <= BLOCK_M and is_run and len({owner[token] for token in run}) == 1):
            raise AssertionError(
                f"a program covers the tokens {run}, but should cover 1 to {BLOCK_M} "
                "consecutive tokens of one sequence"
            )


def _longest(batch: Batch) -> int:
    return max(batch.query_lens, default=0)


def _owners(batch: Batch) -> list[int]:
    """Return the request of each token."""
    return [i for i, count in enumerate(batch.query_lens) for _ in range(count)]


# The same batch in another form.

PADDINGS = st.builds(
    Padded, st.sampled_from(((0,), (5, 0), (), (1, 0, 5))), st.sampled_from((2, 0, 1))
)
"""Padded requests and tokens; lengths 1 and 5 are left over from an older step."""


@law(
    presets=(MINIMAL,),
    in_simulator=False,
    choices=PADDINGS,
    goals={
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
    """Added padding does not change what each part of a result reads and writes."""
    without, with_padding = (
        _filled(case.result_access(change)) for change in (Unpadded(), case.choice)
    )
    if len(without) != len(with_padding):
        raise AssertionError(f"{len(with_padding)} parts with padding, but {len(without)} without")
    for expected, actual in zip(without, with_padding, strict=True):
        actual.assert_equal(expected)


def _filled(parts: list[Access]) -> list[Access]:
    """Return the parts without empty ones at the end, which hold only padding."""
    count = max((i + 1 for i, part in enumerate(parts) if part), default=0)
    return parts[:count]


def _is_moved(case: LawCase) -> bool:
    order = case.choice.order(case.batch)
    return any(i != at and case.batch.query_lens[i] for at, i in enumerate(order))


@law(
    presets=(MINIMAL,),
    in_simulator=False,
    choices=st.builds(InOrder, st.integers(0, 2**16)),
    goals={"a request with tokens changes its place": _is_moved},
)
def any_order_means_the_same(case: LawCase) -> None:
    """Reordering the requests does not change what each token reads and writes."""
    Access.union(case.result_access(case.choice)).assert_equal(
        Access.union(case.result_access(Change()))
    )


@law(
    goals={
        "kernel blocks split the manager's": lambda case: (
            case.batch.layout.blocks_per_kv_block > 1 and case.batch.num_tokens > 0
        )
    }
)
def kernel_blocks_rename(case: LawCase) -> None:
    """A slot is the same whether a table lists the manager's blocks or kernel blocks."""
    Access.union(case.result_access()).assert_equal(
        Access.union(case.result_access(InManagersBlocks()))
    )


LAWS = {value.name: value for value in list(vars().values()) if isinstance(value, Law)}
"""All laws, by name."""
