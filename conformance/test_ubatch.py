"""Micro-batches: the metadata of consecutive slices of a batch, which run next to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import reference
from conformance.contracts.contract import Contract
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import Axis
from conformance.invalid_inputs.ubatch import (
    MAKE_INVALID_INPUTS,
    SLICE_STARTS_INVALID_INPUTS,
    SPLIT_INVALID_INPUTS,
)
from conformance.laws.access import Access
from conformance.laws.changes import Change
from conformance.laws.interpretation import Interpretation, Reader, requests_of, with_batch
from conformance.strategies import cached as st
from conformance.strategies.batch import Batch
from conformance.strategies.batches import of_batch, of_metadata
from conformance.strategies.large_batches import SPLIT_POINTS, metadata_axes, request_axes
from conformance.strategies.ubatch import (
    MANY_PARTS,
    ONE_TOKEN,
    make_metadata_with_slice_calls,
    slice_query_start_locs_calls,
    slices_between,
    split_attn_metadata_calls,
    valid_points,
)
from conformance.values.aliases import views_of
from conformance.values.call import Call


def _sliced_starts(call: Call, change: Change) -> Call:
    """Return the call for the same requests, without those that the changed batch lacks."""
    batch, requests = change(call.source), call["request_slice"]
    start, stop = (min(edge, batch.num_reqs) for edge in (requests.start, requests.stop))
    starts = batch.query_start_loc()
    return with_batch(call, batch, query_start_loc=starts, request_slice=slice(start, stop))


def _tokens_of_requests(call: Call) -> range:
    starts, requests = call.source.starts, call["request_slice"]
    return range(starts[requests.start], starts[requests.stop])


def _requests_of_starts(reader: Reader, call: Call) -> Iterator[Access]:
    """Yield the access relation of the slice's requests, with the sliced starts."""
    tokens = _tokens_of_requests(call)
    metadata = requests_of(
        call.source.metadata(),
        call["request_slice"],
        reader.answer(call).cpu().numpy(),
        slice(tokens.start, tokens.stop),
    )
    yield reader.access(metadata, call.source.layout).shifted(tokens.start)


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
    batch, ubatch = call.source, call["ubatch_slice"]
    if ubatch.token_slice.start >= batch.num_tokens:
        batch = batch if batch.num_tokens else ONE_TOKEN
        ubatch = slices_between(batch, [])[0]
    causal = batch.causal or is_cut(batch, ubatch)[1]
    batch = dataclasses.replace(batch, causal=causal)
    return with_batch(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _sliced(call: Call, change: Change) -> Call:
    """Return the call for the same tokens of a changed batch."""
    batch, ubatch = change(call.source), call["ubatch_slice"]
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    # A slice that reaches the padding, or the end of the batch, gets the new padding.
    is_last = tokens.stop >= call.source.num_tokens
    end = batch.num_actual_tokens if is_last else tokens.stop
    stop = batch.num_reqs if is_last else min(requests.stop, batch.num_reqs)
    ubatch = reference.UBatchSlice(slice(requests.start, stop), slice(tokens.start, end))
    return with_batch(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _tokens_of_slice(call: Call) -> range:
    tokens = call["ubatch_slice"].token_slice
    return range(tokens.start, tokens.stop)


def _slice_of_batch(reader: Reader, call: Call) -> Iterator[Access]:
    first = _tokens_of_slice(call).start
    yield reader.access(reader.answer(call), call.source.layout).shifted(first)


def _calls_with_valid_points(preset: Preset) -> st.SearchStrategy[Call]:
    """Return calls of `split_attn_metadata` whose batch is causal, or cut between requests."""

    def with_valid_points(call: Call) -> Call:
        slices = call["ubatch_slices"]
        edges = [ubatch.token_slice.start for ubatch in slices[1:]]
        if call.source.causal or edges == valid_points(call.source, edges):
            return call
        return call.replacing(
            ubatch_slices=slices_between(call.source, valid_points(call.source, edges))
        )

    return split_attn_metadata_calls(preset).map(with_valid_points)


def _cut_changed(call: Call, change: Change) -> Call:
    """Return the call that cuts a changed batch at the same points."""
    batch = change(call.source)
    points = [ubatch.token_slice.start for ubatch in call["ubatch_slices"][1:]]
    has_any = batch.num_reqs and batch.num_actual_tokens
    slices = slices_between(batch, valid_points(batch, points)) if has_any else []
    return with_batch(call, batch, common_attn_metadata=batch.metadata(), ubatch_slices=slices)


def _micro_batches(reader: Reader, call: Call) -> Iterator[Access]:
    parts = reader.answer(call)
    for ubatch, part in zip(call["ubatch_slices"], parts, strict=True):
        yield reader.access(part, call.source.layout).shifted(ubatch.token_slice.start)


STARTS = Interpretation(
    _requests_of_starts,
    _sliced_starts,
    selects=lambda call, access: access.of_tokens(_tokens_of_requests(call)),
)
"""Interprets `slice_query_start_locs`: the requests of the slice."""


SLICE = Interpretation(
    _slice_of_batch,
    _sliced,
    calls=_slices_with_tokens,
    selects=lambda call, access: access.of_tokens(_tokens_of_slice(call)),
)
"""Interprets `_make_metadata_with_slice`: the tokens of the slice."""


MICRO_BATCHES = Interpretation(_micro_batches, _cut_changed, calls=_calls_with_valid_points)
"""Interprets `split_attn_metadata`: one part for each micro-batch."""


test_slice_query_start_locs = Contract(
    "slice_query_start_locs",
    slice_query_start_locs_calls,
    {
        **of_batch("no requests", "strided arrays", "padded requests at the end"),
        "an empty slice": lambda call: call["request_slice"].start == call["request_slice"].stop,
        "the whole batch": lambda call: (
            call["request_slice"] == slice(0, call.source.num_reqs) != slice(0, 0)
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
        "cut at the front": lambda call: is_cut(call.source, call["ubatch_slice"])[0],
        "cut at the back": lambda call: is_cut(call.source, call["ubatch_slice"])[1],
        "one request cut at both ends": lambda call: _is_cut_at_both_ends(
            call.source, call["ubatch_slice"]
        ),
        "requests with tokens after its last": lambda call: (
            call.source.starts[call["ubatch_slice"].request_slice.stop - 1]
            >= call["ubatch_slice"].token_slice.stop
            and any(call.source.query_lens[call["ubatch_slice"].request_slice][1:])
        ),
        "padding alone": lambda call: (
            call["ubatch_slice"].token_slice.start >= call.source.num_tokens
        ),
        "the maxima are raised": lambda call: call.source.raised > 0,
        "counts are NumPy ints": lambda call: call.source.has_numpy_ints,
        "not causal": lambda call: not call.source.causal,
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
            _is_cut_at_both_ends(call.source, u) for u in call["ubatch_slices"]
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
