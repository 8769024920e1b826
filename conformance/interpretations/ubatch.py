"""What micro-batches mean: pieces of a batch, each with tokens of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.calls import Call
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, about, requests_of
from conformance.strategies.batches import Batch, Layout, batches, is_padded
from conformance.strategies.draw import Draw
from conformance.strategies.presets import Preset
from conformance.strategies.ubatch import (
    cuts,
    make_metadata_with_slice_calls,
    slices_between,
    split_attn_metadata_calls,
)

LONE = Batch((1,), (0,), Layout(2), ((3,),))
"""A batch of one token, where another has none to cut."""


def points_of(call: Call) -> list[int]:
    """Return the split points, one alone in a list too."""
    points = call.arguments["split_points"]
    return points if isinstance(points, list) else [points]


def _fair(batch: Batch, points: list[int]) -> list[int]:
    """Return those points at which a batch may be cut, and each part mean what it meant.

    One that is not causal is cut between requests: the tokens before a cut do not see those behind.
    Padding alone is a part where a padded request is there to have it.
    """
    total = batch.num_actual_tokens if is_padded(batch) else batch.num_tokens
    return [p for p in points if 0 < p < total and (batch.causal or p in batch.starts)]


@st.composite
def _cut_lengths(draw: Draw, preset: Preset) -> Call:
    """Draw calls of `create_ubatch_slices` whose facts are the batch, and its metadata the rest."""
    batch = draw(batches(preset))
    batch = batch if batch.num_tokens else LONE
    points = draw(cuts(batch.num_tokens, batch.query_lens))
    return _of_lengths(Call("create_ubatch_slices", {}), batch, points)


def _of_lengths(call: Call, batch: Batch, points: list[int]) -> Call:
    """Return the call that cuts a batch at those of the points that are fair."""
    lens = np.array(batch.query_lens, np.int32)
    points = [p for p in _fair(batch, points) if p < batch.num_tokens]
    return about(call, batch, num_scheduled_tokens=lens, split_points=points)


def _created_parts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield what each slice means: what `reference` makes of it."""
    metadata = call.facts.metadata()
    for ubatch in reader.answer(call):
        made = reference.UBatchSlice(ubatch.request_slice, ubatch.token_slice)
        [part] = reference.split_attn_metadata([made], metadata)
        yield reader.access(part, call.facts.layout).shifted(made.token_slice.start)


def _sliced_starts(call: Call, change: Change) -> Call:
    """Return the call about the same requests, as far as they are there."""
    batch, requests = change.of(call.facts), call.arguments["request_slice"]
    start, stop = (min(edge, batch.num_reqs) for edge in (requests.start, requests.stop))
    starts = batch.query_start_loc()
    return about(call, batch, query_start_loc=starts, request_slice=slice(start, stop))


def _tokens_of_requests(call: Call) -> range:
    starts, requests = call.facts.starts, call.arguments["request_slice"]
    return range(starts[requests.start], starts[requests.stop])


def _requests_of_starts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield what the slice's requests mean with the starts that were sliced."""
    tokens = _tokens_of_requests(call)
    metadata = requests_of(
        call.facts.metadata(),
        call.arguments["request_slice"],
        reader.answer(call).cpu().numpy(),
        slice(tokens.start, tokens.stop),
    )
    yield reader.access(metadata, call.facts.layout).shifted(tokens.start)


def is_cut(batch: Batch, ubatch: reference.UBatchSlice) -> tuple[bool, bool]:
    """Tell whether the first request is cut at its front, and the last one at its back."""
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    return (
        batch.starts[requests.start] < tokens.start < batch.num_tokens,
        tokens.stop < batch.starts[requests.stop],
    )


@st.composite
def _slices_with_tokens(draw: Draw, preset: Preset) -> Call:
    """Draw calls of `_make_metadata_with_slice` of slices with tokens, that mean what they meant.

    Where the last request is cut at its back, the batch is causal.
    """
    call = draw(make_metadata_with_slice_calls(preset))
    batch, ubatch = call.facts, call.arguments["ubatch_slice"]
    if ubatch.token_slice.start >= batch.num_tokens:
        batch = batch if batch.num_tokens else LONE
        ubatch = slices_between(batch, [])[0]
    causal = batch.causal or is_cut(batch, ubatch)[1]
    batch = dataclasses.replace(batch, causal=causal)
    return about(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _sliced(call: Call, change: Change) -> Call:
    """Return the call about the same tokens of a changed batch."""
    batch, ubatch = change.of(call.facts), call.arguments["ubatch_slice"]
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    # What ends in the padding, or with the batch, takes its new padding along.
    is_last = tokens.stop >= call.facts.num_tokens
    end = batch.num_actual_tokens if is_last else tokens.stop
    stop = batch.num_reqs if is_last else min(requests.stop, batch.num_reqs)
    ubatch = reference.UBatchSlice(slice(requests.start, stop), slice(tokens.start, end))
    return about(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _tokens_of_slice(call: Call) -> range:
    tokens = call.arguments["ubatch_slice"].token_slice
    return range(tokens.start, tokens.stop)


def _slice_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    first = _tokens_of_slice(call).start
    yield reader.access(reader.answer(call), call.facts.layout).shifted(first)


def _fair_calls(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls of `split_attn_metadata` whose batch is causal, or cut between requests."""

    def fair(call: Call) -> Call:
        slices = call.arguments["ubatch_slices"]
        edges = [ubatch.token_slice.start for ubatch in slices[1:]]
        if call.facts.causal or edges == _fair(call.facts, edges):
            return call
        return call.replacing(ubatch_slices=slices_between(call.facts, _fair(call.facts, edges)))

    return split_attn_metadata_calls(preset).map(fair)


def _cut_anew(call: Call, change: Change) -> Call:
    """Return the call that cuts a changed batch at the same points."""
    batch = change.of(call.facts)
    points = [ubatch.token_slice.start for ubatch in call.arguments["ubatch_slices"][1:]]
    has_any = batch.num_reqs and batch.num_actual_tokens
    slices = slices_between(batch, _fair(batch, points)) if has_any else []
    return about(call, batch, common_attn_metadata=batch.metadata(), ubatch_slices=slices)


def _micro_batches(reader: Reader, call: Call) -> Iterator[Access]:
    parts = reader.answer(call)
    for ubatch, part in zip(call.arguments["ubatch_slices"], parts, strict=True):
        yield reader.access(part, call.facts.layout).shifted(ubatch.token_slice.start)


CREATED = Interpretation(
    _created_parts,
    lambda call, change: _of_lengths(call, change.of(call.facts), points_of(call)),
    calls=_cut_lengths,
)
"""Of `create_ubatch_slices`: its slices, each made a metadata by `reference`."""

STARTS = Interpretation(
    _requests_of_starts,
    _sliced_starts,
    keeps=lambda call, access: access.of_tokens(_tokens_of_requests(call)),
)
"""Of `slice_query_start_locs`: the requests of the slice."""

SLICE = Interpretation(
    _slice_of_batch,
    _sliced,
    calls=_slices_with_tokens,
    keeps=lambda call, access: access.of_tokens(_tokens_of_slice(call)),
)
"""Of `_make_metadata_with_slice`: the tokens of the slice."""

MICRO_BATCHES = Interpretation(_micro_batches, _cut_anew, calls=_fair_calls)
"""Of `split_attn_metadata`: a part for each micro-batch."""
