"""The slices of micro-batches: where a batch is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

import reference
from conformance.contracts.check import property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_equal, exception_of
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.execution.invocations import Invocation
from conformance.invalid_inputs.kinds import MAX_INT64
from conformance.invalid_inputs.ubatch import CREATE_INVALID_INPUTS
from conformance.laws.access import Access
from conformance.laws.interpretation import Interpretation, Reader, with_batch
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batches import batches
from conformance.strategies.large_batches import REQUESTS, SPLIT_POINTS, TOKENS
from conformance.strategies.ubatch import (
    MANY_PARTS,
    ONE_TOKEN,
    create_ubatch_slices_calls,
    cuts,
    points_of,
    valid_points,
)
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict


@st.composite
def _cut_lengths(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `create_ubatch_slices` whose source is a batch."""
    batch = draw(batches(preset))
    batch = batch if batch.num_tokens else ONE_TOKEN
    points = draw(cuts(preset, batch.num_tokens, batch.query_lens))
    return _cut_at(Call("create_ubatch_slices", {}), batch, points)


def _cut_at(call: Call, batch: Batch, points: list[int]) -> Call:
    """Return the call that cuts a batch at the valid ones of some points."""
    lens = np.array(batch.query_lens, np.int32)
    points = [p for p in valid_points(batch, points) if p < batch.num_tokens]
    return with_batch(call, batch, num_scheduled_tokens=lens, split_points=points)


def _created_parts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of each slice, as `reference` cuts it out of the batch."""
    metadata = call.source.metadata()
    for ubatch in reader.answer(call):
        made = reference.UBatchSlice(ubatch.request_slice, ubatch.token_slice)
        [part] = reference.split_attn_metadata([made], metadata)
        yield reader.access(part, call.source.layout).shifted(made.token_slice.start)


CREATED = Interpretation(
    _created_parts,
    lambda call, change: _cut_at(call, change(call.source), points_of(call)),
    calls=_cut_lengths,
)
"""Interprets `create_ubatch_slices`: the metadata of its slices, made by `reference`."""


def _cuts_request(call: Call, times: int) -> bool:
    """Return whether any request is cut at least that many times."""
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
"""Token counts whose sums overflow int64; three times the fourth is 2**64 - 1."""


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


@property_check(
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
    """The split points and the sum of the tokens may be greater than int64."""
    expected = Invocation(REFERENCE, call).run()
    check_equal(target, call, expected, Invocation(target, call).answer())


@property_check("create_ubatch_slices", create_ubatch_slices_calls)
def test_counts_may_be_mapped_from_a_file(target: Target, call: Call) -> None:
    """A subclass of `np.ndarray`, such as `np.memmap`, gives the same slices."""
    expected = Invocation(REFERENCE, call).run()
    invocation = Invocation(target, call)
    counts = invocation.arguments["num_scheduled_tokens"]
    invocation.arguments["num_scheduled_tokens"] = counts.view(np.memmap)
    check_equal(target, call, expected, invocation.answer())


@property_check("create_ubatch_slices", create_ubatch_slices_calls)
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


@property_check("UBatchSlice", lambda _: st.tuples(*[st.integers(0, 3)] * 4))
def test_a_micro_batch_knows_whether_it_is_empty(
    target: Target, ends: tuple[int, int, int, int]
) -> None:
    """A slice is empty without requests or without tokens, and cannot be changed."""
    r0, r1, t0, t1 = ends
    call = Call("UBatchSlice", {"request_slice": slice(r0, r1), "token_slice": slice(t0, t1)})
    ubatch = target.lookup("UBatchSlice")(**call.arguments)
    expected = {"is_empty": r1 <= r0 or t1 <= t0, "num_tokens": t1 - t0}
    got = {"is_empty": ubatch.is_empty(), "num_tokens": ubatch.num_tokens}
    check_equal(target, call, expected, got, "ubatch")
    if exception_of(lambda: setattr(ubatch, "token_slice", slice(0, 1))) is None:
        wrong = Difference(Verdict.TYPE, "ubatch", None, "mutable", "frozen")
        raise Mismatch(call, target.name, wrong)
