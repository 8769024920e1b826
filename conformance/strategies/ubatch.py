"""Calls of the functions that cut a batch into micro-batches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import reference
from conformance.arrays.guard_bands import guarded
from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch, Layout, is_padded
from conformance.strategies.batches import batches
from conformance.strategies.large_batches import SPLIT_POINTS
from conformance.strategies.metadata import metadata_calls
from conformance.values.call import Call

MANY_PARTS = "`reference` takes seconds for thousands, and engines split into two or three"

ONE_TOKEN = Batch((1,), (0,), Layout(2), ((3,),))
"""A batch of one token, used if the drawn batch has no tokens."""


def points_of(call: Call) -> list[int]:
    """Return the split points, always as a list."""
    points = call["split_points"]
    return points if isinstance(points, list) else [points]


def valid_points(batch: Batch, points: list[int]) -> list[int]:
    """Return the points at which a batch can be cut without changing its access relation.

    A batch that is not causal is cut between requests: tokens before a cut cannot read those after
    it. A part may consist of padding only if there is a padded request.
    """
    total = batch.num_actual_tokens if is_padded(batch) else batch.num_tokens
    return [p for p in points if 0 < p < total and (batch.causal or p in batch.starts)]


@st.composite
def create_ubatch_slices_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `create_ubatch_slices`, of batches that have tokens."""
    batch = draw(batches(preset))
    lens = list(batch.query_lens) if batch.num_tokens else [*batch.query_lens, 3]
    points: Any = draw(cuts(preset, sum(lens), lens))
    if points and preset.axis != SPLIT_POINTS and draw(st.SOMETIMES):
        points = points[:1]
    if points and draw(st.booleans()):
        # A request of no tokens where the batch is cut, if the cut lies between requests.
        ends = [int(end) for end in np.cumsum(lens)]
        lens.insert(next(i for i, end in enumerate(ends) if end >= points[0]) + 1, 0)
    dtype: Any = draw(st.sampled_from((np.int32, np.int64)))
    if len(points) == 1 and draw(st.booleans()):
        [points] = points
    arguments = {
        "num_scheduled_tokens": guarded(lens, dtype, batch.stride),
        "split_points": points,
    }
    return Call("create_ubatch_slices", arguments, batch)


@st.composite
def cuts(
    draw: st.DrawFn, preset: Preset, total: int, lens: list[int] | tuple[int, ...]
) -> list[int]:
    """Draw increasing split points inside `(0, total)`: between requests, inside them, adjacent."""
    if total < 2:
        return []
    number = draw(preset.sizes(SPLIT_POINTS, st.none()))
    if number is not None:
        chance = np.random.default_rng(draw(st.integers(0, 2**16)))
        return sorted((1 + chance.permutation(total - 1)[:number]).tolist())
    points = draw(st.sets(st.integers(1, total - 1), max_size=4))
    edges = sorted({int(e) for e in np.cumsum(lens)} - {0, total})
    if edges:
        # Hypothesis stores strategies: one of all edges would stay in memory.
        places = st.integers(0, len(edges) - 1)
        points |= {edges[i] for i in draw(st.sets(places, max_size=4))}
    longest = max(lens)
    if longest > 2 and draw(st.booleans()):
        # Two cuts inside one request.
        start = int(sum(lens[: list(lens).index(longest)]))
        points |= {start + 1, start + draw(st.integers(2, longest - 1))}
    return sorted(points)


@st.composite
def slice_query_start_locs_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `slice_query_start_locs`: any slice of requests, the empty ones too."""
    batch = draw(batches(preset))
    start = draw(st.one_of(st.just(0), st.integers(0, batch.num_reqs)))
    stop = draw(st.one_of(st.just(batch.num_reqs), st.integers(start, batch.num_reqs)))
    requests = slice(start, stop, draw(st.sampled_from((None, None, 1))))
    arguments = {"query_start_loc": batch.query_start_loc(), "request_slice": requests}
    return Call("slice_query_start_locs", arguments, batch)


def slices_between(batch: Batch, points: list[int]) -> list[reference.UBatchSlice]:
    """Return the micro-batches between split points; padding belongs to the last ones.

    Each takes the requests that have a token in it; one with only padding takes the last
    request, which must have no tokens.
    """
    found, starts, num_tokens = [], batch.starts, batch.num_tokens
    edges = [0, *points, batch.num_actual_tokens]
    for first, last in itertools.pairwise(edges):
        owners = [
            i
            for i in range(batch.num_reqs)
            if starts[i] < min(last, num_tokens) and starts[i + 1] > first
        ]
        if not owners:
            owners = [batch.num_reqs - 1]
        stop = batch.num_reqs if last > num_tokens else owners[-1] + 1
        found.append(reference.UBatchSlice(slice(owners[0], stop), slice(first, last)))
    return found


@st.composite
def _cut_batches(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw metadata and its micro-batches; the source is the batch."""
    call = draw(metadata_calls(preset))
    batch = call.source
    total = batch.num_actual_tokens if is_padded(batch) else batch.num_tokens
    can_be_cut = batch.num_reqs and total
    slices = (
        slices_between(batch, draw(cuts(preset, total, batch.query_lens))) if can_be_cut else []
    )
    return Call("", {"metadata": call.arguments["metadata"], "slices": slices}, batch)


@st.composite
def split_attn_metadata_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `split_attn_metadata`: into none, one, two, three and more."""
    call = draw(_cut_batches(preset))
    arguments = {
        "ubatch_slices": call.arguments["slices"],
        "common_attn_metadata": call.arguments["metadata"],
    }
    return Call("split_attn_metadata", arguments, call.source)


@st.composite
def make_metadata_with_slice_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `_make_metadata_with_slice`; a batch that cannot be cut is replaced."""
    call = draw(_cut_batches(preset))
    batch, slices = call.source, call.arguments["slices"]
    metadata = call.arguments["metadata"]
    if not slices:
        one = Batch((1,), (0,), batch.layout, ((3,),))
        batch, metadata = one, one.metadata()
        slices = [reference.UBatchSlice(slice(0, 1), slice(0, 1))]
    ubatch = draw(st.sampled_from(slices))
    # A micro-batch may also have requests without tokens in it, as padding.
    requests = ubatch.request_slice
    stop = draw(st.one_of(st.just(requests.stop), st.integers(requests.stop, batch.num_reqs)))
    ubatch = reference.UBatchSlice(slice(requests.start, stop), ubatch.token_slice)
    arguments = {"ubatch_slice": ubatch, "attn_metadata": metadata}
    return Call("_make_metadata_with_slice", arguments, batch)
