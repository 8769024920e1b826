"""Micro-batches: a batch cut into runs of tokens, each with its own metadata."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.adapters import Unsupported
from conformance.functions.config import plain_class
from conformance.harness.contract import Arguments, Contract
from conformance.harness.pair import Pair
from conformance.harness.sizes import rngs, sizes, vectors
from conformance.laws import batch_laws as laws
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import (
    MAX_INT32,
    Batch,
    IntArray,
    batches,
    choices,
    deferred,
    metadata_specials,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target

MAX_INT64: Final = 2**63 - 1

HUGE: Final = (1, 0, MAX_INT64, 2**61, 2**62, 0x5555555555555555)
"""Token counts whose sums pass int64; three times the last is 2**64 - 1."""


def cuts(draw: st.DrawFn, ends: IntArray, total: int, number: int) -> list[int]:
    """Draw increasing points inside `(0, total)`, some of them between requests."""
    if total < 2:
        return []
    between = ends[(ends > 0) & (ends < total)]
    if number > 8:
        rng = draw(rngs())
        points = {*rng.choice(between, min(number // 3, len(between)), replace=False).tolist()}
        points |= {*(1 + rng.permutation(min(total - 1, 10**5))[: number - len(points)]).tolist()}
        return sorted(points)
    found = set()
    for _ in range(number):
        if len(between) and draw(st.booleans()):
            found.add(int(between[draw(st.integers(0, len(between) - 1))]))
        else:
            found.add(draw(st.integers(1, total - 1)))
    return sorted(found)


# create_ubatch_slices


@st.composite
def created(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    """Draw counts, up to more than an int64 can sum, and points in and between requests."""
    number, points = draw(sizes(1)), draw(sizes(0, 300, small=3))
    kind, most, dtype, is_int = choices(
        *(draw, range(12), (3, 1, 20, 1000, MAX_INT32), (np.int32, np.int64), (True, False))
    )
    if kind == 11:
        return deferred(_huge)
    while number * points > 8000:  # `reference` takes 0.3 us for each request of each part
        number, points = (number // 2, points) if is_int else (number, points // 2)

    if points > 8:
        most = max(most, points)

    def contents(draw: st.DrawFn) -> Arguments:
        lens = draw(vectors(max(number, 1), 0, most, dtype, rare=() if points > 8 else (0, 1)))
        lens[-1] += not lens.any()
        ends = np.cumsum(lens, dtype=np.int64)
        found = cuts(draw, ends, int(ends[-1]), points)
        is_one = is_int and len(found) == 1
        return {"num_scheduled_tokens": lens, "split_points": found[0] if is_one else found}

    return deferred(contents)


def _huge(draw: st.DrawFn) -> Arguments:
    counts = [draw(st.sampled_from(HUGE)) for _ in range(draw(st.integers(2, 5)))]
    counts = [counts[0] or 1] * len(counts) if draw(st.booleans()) else [*counts, 1]
    total = sum(counts)
    near = (1, MAX_INT64 - 1, MAX_INT64, MAX_INT64 + 1, 2**64, total // 2, total - 1)
    found = {draw(st.sampled_from(near)) for _ in range(draw(st.integers(0, 3)))}
    points = sorted(point for point in found if 0 < point < total)
    return {"num_scheduled_tokens": np.array(counts, np.int64), "split_points": points}


def wrong_points(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let points be equal, fall, or be 0 or the end; also of more tokens than int64 counts."""
    counts = arguments["num_scheduled_tokens"]
    if rng.random() < 0.3:
        counts = np.full(2, MAX_INT64, np.int64)
    total = sum(counts.tolist())
    points = rng.choice(([1, 1], [2, 1], [0], [total], 0, total, [1, total], [total - 1, 1]))
    return {"num_scheduled_tokens": counts, "split_points": points}


def no_tokens(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let there be no tokens, or no requests."""
    counts = arguments["num_scheduled_tokens"]
    return {**arguments, "num_scheduled_tokens": counts[:0] if rng.randrange(2) else counts * 0}


def counts_may_be_mapped_from_a_file(target: Target, arguments: Arguments) -> None:
    """A subclass of `np.ndarray` gives the same slices."""
    counts = arguments["num_scheduled_tokens"].view(np.memmap)
    call = target.function("create_ubatch_slices")
    mine, theirs = call(**{**arguments, "num_scheduled_tokens": counts}), call(**arguments)
    assert mine == theirs, f"{mine} of a mapped array, {theirs} of a plain one"


def a_micro_batch_knows_whether_it_is_empty(target: Target, arguments: Arguments) -> None:
    """A `UBatchSlice` is empty without requests or without tokens."""
    rng = random.Random(repr(arguments))  # noqa: S311  # no secret
    for _ in range(8):
        r0, r1, t0, t1 = (rng.randrange(3) for _ in range(4))
        fields = {"request_slice": slice(r0, r1), "token_slice": slice(t0, t1)}
        try:
            target.implementation.adapter.supported("UBatchSlice", (), fields)
        except Unsupported:
            continue
        made = target.find("UBatchSlice")(**fields)
        assert made.is_empty() == (r1 <= r0 or t1 <= t0), f"{made}.is_empty()"
        assert type(made.is_empty()) is bool, f"{made}.is_empty() is no bool"
        assert made.num_tokens == t1 - t0, f"{made}.num_tokens is {made.num_tokens}"


# slice_query_start_locs


@st.composite
def sliced_starts(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number = draw(sizes(0, 2100))
    most, ends, step = choices(draw, (1, 3, 20, MAX_INT32 // max(number, 1)), range(4), (None, 1))

    def contents(draw: st.DrawFn) -> Arguments:
        starts = np.cumsum([0, *draw(vectors(number, 0, most, np.int64))]).astype(np.int32)
        start = draw(st.integers(0, number)) if ends & 1 else 0
        stop = draw(st.integers(start, number)) if ends & 2 else number
        return {"query_start_loc": starts, "request_slice": slice(start, stop, step)}

    return deferred(contents)


# _make_metadata_with_slice, split_attn_metadata


def ubatch_slice(batch: Batch, first: int, stop: int) -> reference.UBatchSlice:
    last = min(stop, batch.num_tokens) - 1
    r0, r1 = np.searchsorted(batch.starts, (first, last), "right").tolist()
    r0 = min(r0, batch.num_reqs) - 1
    if first >= batch.num_tokens:
        r0 = batch.num_reqs - 1
    r1 = batch.num_reqs if stop > batch.num_tokens else r1
    return reference.UBatchSlice(slice(r0, r1), slice(first, stop))


def slices_between(batch: Batch, points: Sequence[int]) -> list[reference.UBatchSlice]:
    """Return the micro-batches between points; none of a batch that cannot be cut."""
    if not batch.num_reqs or not batch.num_actual_tokens:
        return []
    edges = [0, *points, batch.num_actual_tokens]
    return [ubatch_slice(batch, first, stop) for first, stop in itertools.pairwise(edges)]


def _slices(
    draw: st.DrawFn, batch: Batch, number: int, *, is_apart: bool
) -> list[reference.UBatchSlice]:
    total = batch.num_actual_tokens if batch.is_padded else batch.num_tokens
    points = cuts(draw, batch.starts, total, number)
    found = slices_between(batch, points)
    if is_apart and len(found) > 1:
        found = found[draw(st.integers(0, 1)) :: 1 + draw(st.integers(0, 1))]
        found = found[:: -1 if draw(st.booleans()) else 1]
    return found


@st.composite
def _cut(draw: st.DrawFn, *, is_one: bool) -> st.SearchStrategy[Arguments]:
    batch_of_sizes = draw(batches(least_tokens=1, has_optional=True))
    number = draw(sizes(0, 130, small=3))
    few = (False, False, True)
    [is_apart, has_more, is_twice] = choices(draw, (False, True), (False, True), few)

    def contents(draw: st.DrawFn) -> Arguments:
        batch = draw(batch_of_sizes)
        # `reference` validates the batch for each part.
        count = min(number, max(3, 6_000 // (batch.num_reqs + 10)))
        slices = _slices(draw, batch, count, is_apart=is_apart)
        metadata = batch.metadata()
        if not is_one:
            slices += slices[-1:] * is_twice  # a dummy run may name one twice
            return {"ubatch_slices": slices, "common_attn_metadata": metadata}
        ubatch = slices[draw(st.integers(0, len(slices) - 1))]
        requests = ubatch.request_slice
        if has_more:  # requests without tokens in it, as padding
            stop = draw(st.integers(requests.stop, batch.num_reqs))
            ubatch = reference.UBatchSlice(slice(requests.start, stop), ubatch.token_slice)
        return {"ubatch_slice": ubatch, "attn_metadata": metadata}

    return deferred(contents)


def wrong_slice(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let a micro-batch begin before or after its first request, lose tokens, or be empty."""
    is_one = "ubatch_slice" in arguments
    metadata = arguments["attn_metadata" if is_one else "common_attn_metadata"]
    ubatch = arguments["ubatch_slice"] if is_one else arguments["ubatch_slices"][-1]
    r0, r1 = ubatch.request_slice.start, ubatch.request_slice.stop
    t0, t1 = ubatch.token_slice.start, ubatch.token_slice.stop
    num_reqs, num_tokens = int(metadata.num_reqs), int(metadata.num_actual_tokens)
    busy = np.flatnonzero(np.diff(metadata.query_start_loc))
    padding = int(metadata.query_start_loc[-1]), num_tokens
    r0, r1, t0, t1 = rng.choice(
        (
            *((r0 + 1, max(r1, r0 + 2), t0, t1), (0, r1, t0, t1), (r0, r1 - 1, t0, t1)),
            *((0, 0, t0, t1), (r0, r1, 0, 0), (r0, num_reqs + 1, t0, t1)),
            *((r0, r1, t0, num_tokens + 1), (int(busy[0]) if len(busy) else 0, num_reqs, *padding)),
        )
    )
    wrong = reference.UBatchSlice(slice(r0, r1), slice(t0, t1))
    if is_one:
        return {**arguments, "ubatch_slice": wrong}
    return {**arguments, "ubatch_slices": [*arguments["ubatch_slices"][:-1], wrong]}


def no_micro_batches_of_nothing(target: Target, arguments: Arguments) -> None:
    """An empty list of micro-batches gives an empty list."""
    contract = next(one for one in CONTRACTS if one.function == "split_attn_metadata")
    outcome = Pair(contract, target, {**arguments, "ubatch_slices": []}).outcome()
    assert outcome.value == [], f"{outcome}, expected an empty list"


# Laws.


def _points(batch: Batch) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, batch.num_tokens), min_size=1, max_size=4).map(
        lambda found: sorted({*found})
    )


def _valid(batch: Batch, points: Sequence[int]) -> list[int]:
    """Return the points that leave the access relation as it is.

    A batch that is not causal is cut between requests: tokens before a cut cannot read those after
    it. A part may consist of padding only if there is a padded request.
    """
    total = batch.num_actual_tokens if batch.is_padded else batch.num_tokens
    return [p for p in points if 0 < p < total and (batch.causal or p in batch.starts)]


def _split(batch: Batch, points: Sequence[int]) -> Arguments:
    slices = slices_between(batch, _valid(batch, points))
    return {"ubatch_slices": slices, "common_attn_metadata": batch.metadata()}


def _one_slice(batch: Batch, points: Sequence[int]) -> Arguments:
    inside = [point for point in points if point < batch.num_tokens]
    slices = slices_between(batch, _valid(batch, inside))
    return {"ubatch_slice": slices[len(slices) // 2], "attn_metadata": batch.metadata()}


def _created(batch: Batch, points: Sequence[int]) -> Arguments:
    inside = [point for point in points if point < batch.num_tokens]
    return {
        "num_scheduled_tokens": batch.query_lens.astype(np.int32),
        "split_points": _valid(batch, inside),
    }


def _parts(_: Batch, arguments: Arguments, result: Any) -> list[Part]:
    slices = arguments["ubatch_slices"]
    assert len(slices) == len(result), f"{len(result)} parts of {len(slices)} slices"
    return [
        Part(part, ubatch.token_slice.start) for ubatch, part in zip(slices, result, strict=True)
    ]


def _created_parts(batch: Batch, _: Arguments, result: Any) -> list[Part]:
    slices = [reference.UBatchSlice(made.request_slice, made.token_slice) for made in result]
    parts = reference.split_attn_metadata(slices, batch.metadata())
    return _parts(batch, {"ubatch_slices": slices}, parts)


def _one_part(_: Batch, arguments: Arguments, result: Any) -> list[Part]:
    return [Part(result, arguments["ubatch_slice"].token_slice.start)]


def _tokens(_: Batch, arguments: Arguments) -> range:
    tokens = arguments["ubatch_slice"].token_slice
    return range(tokens.start, tokens.stop)


def _ends(batch: Batch) -> st.SearchStrategy[list[int]]:
    return st.tuples(*[st.integers(0, batch.num_reqs)] * 2).map(sorted)


def _starts(batch: Batch, ends: Sequence[int]) -> Arguments:
    start, stop = (min(end, batch.num_reqs) for end in ends)
    return {"query_start_loc": batch.query_start_loc(), "request_slice": slice(start, stop)}


def _tokens_of_requests(batch: Batch, arguments: Arguments) -> range:
    requests = arguments["request_slice"]
    return range(int(batch.starts[requests.start]), int(batch.starts[requests.stop]))


def _requests(batch: Batch, arguments: Arguments, result: Any) -> list[Part]:
    requests, tokens = arguments["request_slice"], _tokens_of_requests(batch, arguments)
    part = dataclasses.replace(
        batch,
        query_lens=batch.query_lens[requests],
        num_computed_tokens=batch.num_computed_tokens[requests],
        block_table=batch.block_table[requests],
        num_padding_tokens=0,
    ).metadata()
    made = dataclasses.replace(part, query_start_loc=result, query_start_loc_cpu=result)
    return [Part(made, tokens.start)]


def _edges(ubatch: Any, metadata: Any) -> tuple[bool, bool]:
    """Return whether the first request is cut at its start, and the last one at its end."""
    starts, tokens = metadata.query_start_loc, ubatch.token_slice
    is_cut = starts[ubatch.request_slice.start] < tokens.start < starts[-1]
    return bool(is_cut), bool(tokens.stop < starts[ubatch.request_slice.stop])


CHECKED_ONLY: Final = (
    r"^(seq_lens|max_query_len|num_logits_indices|dcp_local_seq_lens) "
    r"|^logits_indices_padded "
    r"|, (but \w+_cpu has|less than the|more than num_actual_tokens)"
)
"""What `fast` does not read, or does not compare."""

COPIED: Final = frozenset({"seq_lens", "query_start_loc", "seq_lens_cpu", "query_start_loc_cpu"})
"""Fields of a metadata, and their copies, of which a twin reads either."""

CONTRACTS = [
    plain_class("UBatchSlice", a_micro_batch_knows_whether_it_is_empty),
    Contract(
        function="create_ubatch_slices",
        calls=created(),
        host=frozenset({"num_scheduled_tokens"}),
        specials=(wrong_points, no_tokens),
        properties=(counts_may_be_mapped_from_a_file,),
        laws=(
            laws.split_partitions,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_created, _created_parts, _points, least_tokens=1),
        hard_cases={
            "more than 64 points": lambda args: (
                isinstance(args["split_points"], list) and len(args["split_points"]) > 64
            ),
            "more tokens than an int64 holds": lambda args: (
                sum(args["num_scheduled_tokens"].tolist()) > MAX_INT64
            ),
        },
    ),
    Contract(
        function="slice_query_start_locs",
        calls=sliced_starts(),
        laws=(laws.a_slice_keeps_its_tokens, laws.writes_are_read_back, laws.padding_adds_nothing),
        description=Description(_starts, _requests, _ends, _tokens_of_requests),
        hard_cases={
            "more than 1,023 requests": lambda args: len(args["query_start_loc"]) > 1024,
        },
    ),
    Contract(
        function="_make_metadata_with_slice",
        has_kernel=True,  # another path on a device
        unread=COPIED | {"max_query_len"},
        calls=_cut(is_one=True),
        specials=(wrong_slice, *metadata_specials("attn_metadata")),
        checked_only=CHECKED_ONLY,
        laws=(
            laws.a_slice_keeps_its_tokens,
            laws.writes_are_read_back,
            laws.fields_follow_their_axes,
            laws.padding_adds_nothing,
            attention_is_dense,
        ),
        description=Description(_one_slice, _one_part, _points, _tokens, least_tokens=1),
        hard_cases={
            "one request cut at both ends": lambda args: (
                _edges(*args.values()) == (True, True)
                and args["ubatch_slice"].request_slice.stop
                == args["ubatch_slice"].request_slice.start + 1
            ),
            "padding alone": lambda args: (
                args["ubatch_slice"].token_slice.start >= args["attn_metadata"].query_start_loc[-1]
            ),
        },
        takes_own_objects=True,
    ),
    Contract(
        function="split_attn_metadata",
        has_kernel=True,  # another path on a device
        unread=COPIED | {"max_query_len"},
        calls=_cut(is_one=False),
        specials=(wrong_slice, *metadata_specials("common_attn_metadata")),
        checked_only=CHECKED_ONLY,
        properties=(no_micro_batches_of_nothing,),
        laws=(
            laws.split_partitions,
            laws.writes_are_read_back,
            laws.fields_follow_their_axes,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(_split, _parts, _points),
        hard_cases={
            "more than 64 micro-batches": lambda args: len(args["ubatch_slices"]) > 64,
            "more than 1,023 requests": lambda args: args["common_attn_metadata"].num_reqs > 1023,
        },
        takes_own_objects=True,
    ),
]
