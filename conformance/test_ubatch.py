"""Micro-batches: a batch cut into consecutive pieces that run next to each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

import reference
from conformance.aliases import views_of
from conformance.calls import Call
from conformance.contracts import Contract
from conformance.differences import Difference, Verdict
from conformance.evaluation import check_equal, exception_of
from conformance.invalid_inputs.kinds import MAX_INT64
from conformance.invalid_inputs.ubatch import (
    CREATE_INVALID_INPUTS,
    MAKE_INVALID_INPUTS,
    SLICE_STARTS_INVALID_INPUTS,
    SPLIT_INVALID_INPUTS,
)
from conformance.invocations import Invocation
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, requests_of, with_batch
from conformance.properties import law
from conformance.report import Mismatch
from conformance.size_axes import Axis
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout, is_padded
from conformance.strategies.batches import batches, of_batch, of_metadata
from conformance.strategies.large_batches import (
    REQUESTS,
    SPLIT_POINTS,
    TOKENS,
    metadata_axes,
    request_axes,
)
from conformance.strategies.presets import Preset
from conformance.strategies.ubatch import (
    create_ubatch_slices_calls,
    cuts,
    make_metadata_with_slice_calls,
    slice_query_start_locs_calls,
    slices_between,
    split_attn_metadata_calls,
)
from conformance.targets import REFERENCE, Target

MANY_PARTS = "`reference` takes seconds for thousands, and engines split into two or three"

ONE_TOKEN = Batch((1,), (0,), Layout(2), ((3,),))
"""A batch of one token, used if the drawn batch has no tokens."""


def points_of(call: Call) -> list[int]:
    """Return the split points as a list, also if there is one."""
    points = call["split_points"]
    return points if isinstance(points, list) else [points]


def _valid_points(batch: Batch, points: list[int]) -> list[int]:
    """Return the points at which a batch can be cut without changing its access relation.

    A batch that is not causal is cut between requests: tokens before a cut cannot read those after
    it. A part may consist of padding only if there is a padded request.
    """
    total = batch.num_actual_tokens if is_padded(batch) else batch.num_tokens
    return [p for p in points if 0 < p < total and (batch.causal or p in batch.starts)]


@st.composite
def _cut_lengths(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `create_ubatch_slices` whose facts are a batch."""
    batch = draw(batches(preset))
    batch = batch if batch.num_tokens else ONE_TOKEN
    points = draw(cuts(preset, batch.num_tokens, batch.query_lens))
    return _cut_at(Call("create_ubatch_slices", {}), batch, points)


def _cut_at(call: Call, batch: Batch, points: list[int]) -> Call:
    """Return the call that cuts a batch at the valid ones of some points."""
    lens = np.array(batch.query_lens, np.int32)
    points = [p for p in _valid_points(batch, points) if p < batch.num_tokens]
    return with_batch(call, batch, num_scheduled_tokens=lens, split_points=points)


def _created_parts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of each slice, as `reference` cuts it out of the batch."""
    metadata = call.facts.metadata()
    for ubatch in reader.answer(call):
        made = reference.UBatchSlice(ubatch.request_slice, ubatch.token_slice)
        [part] = reference.split_attn_metadata([made], metadata)
        yield reader.access(part, call.facts.layout).shifted(made.token_slice.start)


def _sliced_starts(call: Call, change: Change) -> Call:
    """Return the call about the same requests, as far as the changed batch has them."""
    batch, requests = change(call.facts), call["request_slice"]
    start, stop = (min(edge, batch.num_reqs) for edge in (requests.start, requests.stop))
    starts = batch.query_start_loc()
    return with_batch(call, batch, query_start_loc=starts, request_slice=slice(start, stop))


def _tokens_of_requests(call: Call) -> range:
    starts, requests = call.facts.starts, call["request_slice"]
    return range(starts[requests.start], starts[requests.stop])


def _requests_of_starts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the slice's requests, with the sliced starts."""
    tokens = _tokens_of_requests(call)
    metadata = requests_of(
        call.facts.metadata(),
        call["request_slice"],
        reader.answer(call).cpu().numpy(),
        slice(tokens.start, tokens.stop),
    )
    yield reader.access(metadata, call.facts.layout).shifted(tokens.start)


def is_cut(batch: Batch, ubatch: reference.UBatchSlice) -> tuple[bool, bool]:
    """Return whether the first request is cut at its start, and the last one at its end."""
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    return (
        batch.starts[requests.start] < tokens.start < batch.num_tokens,
        tokens.stop < batch.starts[requests.stop],
    )


@st.composite
def _slices_with_tokens(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_make_metadata_with_slice` that leave the access relation as it is.

    The slices have tokens. If the last request is cut at its end, the batch is causal.
    """
    call = draw(make_metadata_with_slice_calls(preset))
    batch, ubatch = call.facts, call["ubatch_slice"]
    if ubatch.token_slice.start >= batch.num_tokens:
        batch = batch if batch.num_tokens else ONE_TOKEN
        ubatch = slices_between(batch, [])[0]
    causal = batch.causal or is_cut(batch, ubatch)[1]
    batch = dataclasses.replace(batch, causal=causal)
    return with_batch(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _sliced(call: Call, change: Change) -> Call:
    """Return the call about the same tokens of a changed batch."""
    batch, ubatch = change(call.facts), call["ubatch_slice"]
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    # A slice that reaches the padding, or the end of the batch, gets the new padding.
    is_last = tokens.stop >= call.facts.num_tokens
    end = batch.num_actual_tokens if is_last else tokens.stop
    stop = batch.num_reqs if is_last else min(requests.stop, batch.num_reqs)
    ubatch = reference.UBatchSlice(slice(requests.start, stop), slice(tokens.start, end))
    return with_batch(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _tokens_of_slice(call: Call) -> range:
    tokens = call["ubatch_slice"].token_slice
    return range(tokens.start, tokens.stop)


def _slice_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    first = _tokens_of_slice(call).start
    yield reader.access(reader.answer(call), call.facts.layout).shifted(first)


def _calls_with_valid_points(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls of `split_attn_metadata` whose batch is causal, or cut between requests."""

    def with_valid_points(call: Call) -> Call:
        slices = call["ubatch_slices"]
        edges = [ubatch.token_slice.start for ubatch in slices[1:]]
        if call.facts.causal or edges == _valid_points(call.facts, edges):
            return call
        return call.replacing(
            ubatch_slices=slices_between(call.facts, _valid_points(call.facts, edges))
        )

    return split_attn_metadata_calls(preset).map(with_valid_points)


def _cut_changed(call: Call, change: Change) -> Call:
    """Return the call that cuts a changed batch at the same points."""
    batch = change(call.facts)
    points = [ubatch.token_slice.start for ubatch in call["ubatch_slices"][1:]]
    has_any = batch.num_reqs and batch.num_actual_tokens
    slices = slices_between(batch, _valid_points(batch, points)) if has_any else []
    return with_batch(call, batch, common_attn_metadata=batch.metadata(), ubatch_slices=slices)


def _micro_batches(reader: Reader, call: Call) -> Iterator[Access]:
    parts = reader.answer(call)
    for ubatch, part in zip(call["ubatch_slices"], parts, strict=True):
        yield reader.access(part, call.facts.layout).shifted(ubatch.token_slice.start)


CREATED = Interpretation(
    _created_parts,
    lambda call, change: _cut_at(call, change(call.facts), points_of(call)),
    calls=_cut_lengths,
)
"""Of `create_ubatch_slices`: the metadata of its slices, made by `reference`."""

STARTS = Interpretation(
    _requests_of_starts,
    _sliced_starts,
    selects=lambda call, access: access.of_tokens(_tokens_of_requests(call)),
)
"""Of `slice_query_start_locs`: the requests of the slice."""

SLICE = Interpretation(
    _slice_of_batch,
    _sliced,
    calls=_slices_with_tokens,
    selects=lambda call, access: access.of_tokens(_tokens_of_slice(call)),
)
"""Of `_make_metadata_with_slice`: the tokens of the slice."""

MICRO_BATCHES = Interpretation(_micro_batches, _cut_changed, calls=_calls_with_valid_points)
"""Of `split_attn_metadata`: a part for each micro-batch."""


def _cuts_request(call: Call, times: int) -> bool:
    """Return whether a request is cut that often or more."""
    edges = np.cumsum([0, *call["num_scheduled_tokens"]])
    return any(
        sum(a < p < b for p in points_of(call)) >= times for a, b in itertools.pairwise(edges)
    )


test_create_ubatch_slices = Contract(
    "create_ubatch_slices",
    create_ubatch_slices_calls,
    {
        "one split point, as an int": lambda call: isinstance(call["split_points"], int),
        "no split point": lambda call: call["split_points"] == [],
        "three micro-batches or more": lambda call: len(points_of(call)) > 1,
        "a cut between requests": lambda call: any(
            p in np.cumsum(call["num_scheduled_tokens"]) for p in points_of(call)
        ),
        "a request cut in two": lambda call: _cuts_request(call, 1),
        "a request cut at both ends": lambda call: _cuts_request(call, 2),
        "a request of no tokens": lambda call: bool((call["num_scheduled_tokens"] == 0).any()),
        "a request of no tokens at a cut": lambda call: any(
            list(np.cumsum(call["num_scheduled_tokens"])).count(p) > 1 for p in points_of(call)
        ),
        "int32": lambda call: call["num_scheduled_tokens"].dtype == np.int32,
        "int64": lambda call: call["num_scheduled_tokens"].dtype == np.int64,
    },
    invalid_inputs=CREATE_INVALID_INPUTS,
    laws=("split_partitions", "padding_adds_nothing", "any_order_means_the_same"),
    interpretation=CREATED,
    axes={
        REQUESTS: Axis(lambda call: len(call["num_scheduled_tokens"]), first=1),
        TOKENS: Axis(lambda call: call["num_scheduled_tokens"].sum(), 2**31 - 32, first=1),
        SPLIT_POINTS: Axis(lambda call: len(points_of(call)), 1025, MANY_PARTS),
    },
    has_arrays=True,
)


HUGE_COUNTS = (MAX_INT64, 2**61, 2**62, 0x5555555555555555, 0, 1)
"""Numbers of tokens whose sums pass int64; twice the fourth gives a sum of all bits."""


@st.composite
def _huge_batches(draw: st.DrawFn, _: Preset) -> Call:
    """Draw calls of `create_ubatch_slices` for about as many tokens as an int64 holds, or more."""
    counts = draw(st.lists(st.sampled_from(HUGE_COUNTS), min_size=2, max_size=5))
    if draw(st.booleans()):
        counts = [counts[0]] * len(counts)
    counts += [1] * (not any(counts))
    total = sum(counts)
    near = {1, MAX_INT64 - 1, MAX_INT64, MAX_INT64 + 1, total // 2, total - 1}
    points = draw(st.sets(st.sampled_from(sorted(p for p in near if 0 < p < total) or [0])))
    arguments = {
        "num_scheduled_tokens": np.array(counts, np.int64),
        "split_points": sorted(points - {0}),
    }
    return Call("create_ubatch_slices", arguments)


@law(
    "create_ubatch_slices",
    _huge_batches,
    goals={
        "a split point past int64": lambda call: max(points_of(call), default=0) > MAX_INT64,
        "more tokens than an int64 holds": lambda call: (
            sum(call["num_scheduled_tokens"].tolist()) > MAX_INT64
        ),
    },
)
def test_more_tokens_than_an_int64_holds(target: Target, call: Call) -> None:
    """Split points are ints of any size, as the sum of the tokens is."""
    expected = Invocation(REFERENCE, call).run()
    check_equal(target, call, expected, Invocation(target, call).answer())


@law("create_ubatch_slices", create_ubatch_slices_calls)
def test_counts_may_be_mapped_from_a_file(target: Target, call: Call) -> None:
    """An array of a subclass of NumPy's, such as `np.memmap`, is cut as others are."""
    expected = Invocation(REFERENCE, call).run()
    invocation = Invocation(target, call)
    counts = invocation.arguments["num_scheduled_tokens"]
    invocation.arguments["num_scheduled_tokens"] = counts.view(np.memmap)
    check_equal(target, call, expected, invocation.answer())


test_slice_query_start_locs = Contract(
    "slice_query_start_locs",
    slice_query_start_locs_calls,
    {
        **of_batch("no requests", "strided arrays", "padded requests at the end"),
        "an empty slice": lambda call: call["request_slice"].start == call["request_slice"].stop,
        "the whole batch": lambda call: (
            call["request_slice"] == slice(0, call.facts.num_reqs) != slice(0, 0)
        ),
        "a slice that starts inside": lambda call: (
            0 < call["request_slice"].start < call["request_slice"].stop
        ),
    },
    invalid_inputs=SLICE_STARTS_INVALID_INPUTS,
    laws=("a_slice_keeps_its_tokens", "writes_are_read_back", "padding_adds_nothing"),
    interpretation=STARTS,
    axes=request_axes(last_length=2**31 - 32),
    has_arrays=True,
)


def _is_cut_at_both_ends(batch: Batch, ubatch: reference.UBatchSlice) -> bool:
    requests = ubatch.request_slice
    return is_cut(batch, ubatch) == (True, True) and requests.stop == requests.start + 1


test_make_metadata_with_slice = Contract(
    "_make_metadata_with_slice",
    make_metadata_with_slice_calls,
    {
        **of_batch("padded requests at the end", "padded tokens at the end", "strided arrays"),
        **of_metadata(),
        "cut at the front": lambda call: is_cut(call.facts, call["ubatch_slice"])[0],
        "cut at the back": lambda call: is_cut(call.facts, call["ubatch_slice"])[1],
        "one request cut at both ends": lambda call: _is_cut_at_both_ends(
            call.facts, call["ubatch_slice"]
        ),
        "requests with tokens after its last": lambda call: (
            call.facts.starts[call["ubatch_slice"].request_slice.stop - 1]
            >= call["ubatch_slice"].token_slice.stop
            and any(call.facts.query_lens[call["ubatch_slice"].request_slice][1:])
        ),
        "padding alone": lambda call: (
            call["ubatch_slice"].token_slice.start >= call.facts.num_tokens
        ),
        "the maxima are raised": lambda call: call.facts.raised > 0,
        "counts are NumPy ints": lambda call: call.facts.has_numpy_ints,
        "not causal": lambda call: not call.facts.causal,
    },
    invalid_inputs=MAKE_INVALID_INPUTS,
    aliases=views_of("attn_metadata", "block_table_tensor", "slot_mapping", "encoder_seq_lens"),
    has_device_path=True,
    takes_objects=True,
    laws=("a_slice_keeps_its_tokens", "writes_are_read_back", "padding_adds_nothing"),
    interpretation=SLICE,
    on_device=(
        *(
            f"attn_metadata.{name}_cpu"
            for name in ("query_start_loc", "seq_lens", "num_computed_tokens")
        ),
    ),
    axes=metadata_axes(may_be_empty=False),
    has_arrays=True,
)


test_split_attn_metadata = Contract(
    "split_attn_metadata",
    split_attn_metadata_calls,
    {
        **of_batch("padded requests at the end", "padded tokens at the end", "strided arrays"),
        **of_metadata(),
        "no micro-batches": lambda call: not call["ubatch_slices"],
        "two micro-batches": lambda call: len(call["ubatch_slices"]) == 2,
        "three micro-batches or more": lambda call: len(call["ubatch_slices"]) > 2,
        "a request cut at both ends": lambda call: any(
            _is_cut_at_both_ends(call.facts, u) for u in call["ubatch_slices"]
        ),
    },
    pairs=(("padded requests at the end", "a request cut at both ends"),),
    invalid_inputs=SPLIT_INVALID_INPUTS,
    aliases=views_of(
        "common_attn_metadata", "block_table_tensor", "slot_mapping", "encoder_seq_lens"
    ),
    has_device_path=True,
    takes_objects=True,
    laws=(
        "split_partitions",
        "writes_are_read_back",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=MICRO_BATCHES,
    axes={
        **metadata_axes(),
        SPLIT_POINTS: Axis(lambda call: max(len(call["ubatch_slices"]) - 1, 0), 65, MANY_PARTS),
    },
    has_arrays=True,
)


@law("create_ubatch_slices", create_ubatch_slices_calls)
def test_slices_cut_the_tokens(target: Target, call: Call) -> None:
    """The slices are consecutive, and their requests are those with a token in them."""
    slices = Invocation(target, call).answer()
    lens = call["num_scheduled_tokens"].tolist()
    owner = [i for i, q in enumerate(lens) for _ in range(q)]
    edges = [0, *points_of(call), len(owner)]
    assert [(s.token_slice.start, s.token_slice.stop) for s in slices] == list(
        itertools.pairwise(edges)
    )
    for s in slices:
        owners = owner[s.token_slice]
        assert (s.request_slice.start, s.request_slice.stop) == (owners[0], owners[-1] + 1)
        assert not s.is_empty()
        assert s.num_tokens == len(owners)


@law("UBatchSlice", lambda _: st.tuples(*[st.integers(0, 3)] * 4))
def test_a_micro_batch_knows_whether_it_is_empty(
    target: Target, ends: tuple[int, int, int, int]
) -> None:
    """It is empty without a request or without a token, and cannot be changed."""
    r0, r1, t0, t1 = ends
    call = Call("UBatchSlice", {"request_slice": slice(r0, r1), "token_slice": slice(t0, t1)})
    ubatch = target.lookup("UBatchSlice")(**call.arguments)
    expected = {"is_empty": r1 <= r0 or t1 <= t0, "num_tokens": t1 - t0}
    got = {"is_empty": ubatch.is_empty(), "num_tokens": ubatch.num_tokens}
    check_equal(target, call, expected, got, "ubatch")
    if exception_of(lambda: setattr(ubatch, "token_slice", slice(0, 1))) is None:
        wrong = Difference(Verdict.TYPE, "ubatch", None, "mutable", "frozen")
        raise Mismatch(call, target.name, wrong)
