"""Micro-batches: a batch cut into consecutive pieces that run beside each other."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import strategies as st

import reference
from conformance.checks import law, same_answer, same_refusal
from conformance.contracts import Call, Contract, Draw, views_of
from conformance.faults.ubatch import (
    CREATE_FAULTS,
    MAKE_FAULTS,
    SLICE_STARTS_FAULTS,
    SPLIT_FAULTS,
)
from conformance.laws import Access, Change, Meaning, Reader, about, obeys, requests_of
from conformance.sides import Side
from conformance.strategies.batches import Batch, Layout, batches, is_padded, of_batch, of_metadata
from conformance.strategies.presets import Preset
from conformance.strategies.ubatch import (
    create_ubatch_slices_calls,
    cuts,
    make_metadata_with_slice_calls,
    slice_query_start_locs_calls,
    slices_between,
    split_attn_metadata_calls,
)
from conformance.targets import Target

LONE = Batch((1,), (0,), Layout(2), ((3,),))
"""A batch of one token, where another has none to cut."""


def _points(call: Call) -> list[int]:
    points = call.arguments["split_points"]
    return points if isinstance(points, list) else [points]


def _cuts_request(call: Call, times: int) -> bool:
    """Tell whether a request is cut that often or more."""
    edges = np.cumsum([0, *call.arguments["num_scheduled_tokens"]])
    return any(sum(a < p < b for p in _points(call)) >= times for a, b in itertools.pairwise(edges))


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
    lens = np.array(batch.query_lens, np.int32)
    points = [p for p in _fair(batch, points) if p < batch.num_tokens]
    return about(call, batch, num_scheduled_tokens=lens, split_points=points)


def _created_parts(reader: Reader, call: Call) -> Iterator[Access]:
    metadata = call.facts.metadata()
    for ubatch in reader.answer(call):
        made = reference.UBatchSlice(ubatch.request_slice, ubatch.token_slice)
        [part] = reference.split_attn_metadata([made], metadata)
        yield reader.access(part, call.facts.layout).shifted(made.token_slice.start)


CREATE = Contract(
    "create_ubatch_slices",
    create_ubatch_slices_calls,
    {
        "one split point, as an int": lambda call: isinstance(call.arguments["split_points"], int),
        "no split point": lambda call: call.arguments["split_points"] == [],
        "three micro-batches or more": lambda call: len(_points(call)) > 1,
        "a cut between requests": lambda call: any(
            p in np.cumsum(call.arguments["num_scheduled_tokens"]) for p in _points(call)
        ),
        "a request cut in two": lambda call: _cuts_request(call, 1),
        "a request cut at both ends": lambda call: _cuts_request(call, 2),
        "a request of no tokens": lambda call: bool(
            (call.arguments["num_scheduled_tokens"] == 0).any()
        ),
        "a request of no tokens at a cut": lambda call: any(
            list(np.cumsum(call.arguments["num_scheduled_tokens"])).count(p) > 1
            for p in _points(call)
        ),
        "int32": lambda call: call.arguments["num_scheduled_tokens"].dtype == np.int32,
        "int64": lambda call: call.arguments["num_scheduled_tokens"].dtype == np.int64,
    },
    faults=CREATE_FAULTS,
    laws=("split_partitions", "padding_adds_nothing", "any_order_means_the_same"),
    meaning=Meaning(
        _created_parts,
        lambda call, change: _of_lengths(call, change.of(call.facts), _points(call)),
        calls=_cut_lengths,
    ),
)

test_create_ubatch_slices = same_answer(CREATE)
test_create_ubatch_slices_refuses = same_refusal(CREATE)
test_create_ubatch_slices_laws = obeys(CREATE)


def _sliced_starts(call: Call, change: Change) -> Call:
    batch, requests = change.of(call.facts), call.arguments["request_slice"]
    start, stop = (min(edge, batch.num_reqs) for edge in (requests.start, requests.stop))
    starts = batch.query_start_loc()
    return about(call, batch, query_start_loc=starts, request_slice=slice(start, stop))


def _tokens_of_requests(call: Call) -> range:
    starts, requests = call.facts.starts, call.arguments["request_slice"]
    return range(starts[requests.start], starts[requests.stop])


def _requests_of_starts(reader: Reader, call: Call) -> Iterator[Access]:
    tokens = _tokens_of_requests(call)
    metadata = requests_of(
        call.facts.metadata(),
        call.arguments["request_slice"],
        reader.answer(call).cpu().numpy(),
        slice(tokens.start, tokens.stop),
    )
    yield reader.access(metadata, call.facts.layout).shifted(tokens.start)


SLICE_STARTS = Contract(
    "slice_query_start_locs",
    slice_query_start_locs_calls,
    {
        **of_batch("no requests", "strided arrays", "padded requests at the end"),
        "an empty slice": lambda call: (
            call.arguments["request_slice"].start == call.arguments["request_slice"].stop
        ),
        "the whole batch": lambda call: (
            call.arguments["request_slice"] == slice(0, call.facts.num_reqs) != slice(0, 0)
        ),
        "a slice that starts inside": lambda call: (
            0 < call.arguments["request_slice"].start < call.arguments["request_slice"].stop
        ),
    },
    faults=SLICE_STARTS_FAULTS,
    laws=("a_slice_keeps_its_tokens", "writes_are_read_back", "padding_adds_nothing"),
    meaning=Meaning(
        _requests_of_starts,
        _sliced_starts,
        keeps=lambda call, access: access.of_tokens(_tokens_of_requests(call)),
    ),
)

test_slice_query_start_locs = same_answer(SLICE_STARTS)
test_slice_query_start_locs_refuses = same_refusal(SLICE_STARTS)
test_slice_query_start_locs_laws = obeys(SLICE_STARTS)


def _is_cut(batch: Batch, ubatch: reference.UBatchSlice) -> tuple[bool, bool]:
    """Tell whether the first request is cut at its front, and the last one at its back."""
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    return (
        batch.starts[requests.start] < tokens.start < batch.num_tokens,
        tokens.stop < batch.starts[requests.stop],
    )


def _is_cut_at_both_ends(batch: Batch, ubatch: reference.UBatchSlice) -> bool:
    requests = ubatch.request_slice
    return _is_cut(batch, ubatch) == (True, True) and requests.stop == requests.start + 1


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
    causal = batch.causal or _is_cut(batch, ubatch)[1]
    batch = dataclasses.replace(batch, causal=causal)
    return about(call, batch, attn_metadata=batch.metadata(), ubatch_slice=ubatch)


def _sliced(call: Call, change: Change) -> Call:
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


MAKE = Contract(
    "_make_metadata_with_slice",
    make_metadata_with_slice_calls,
    {
        **of_batch("padded requests at the end", "padded tokens at the end", "strided arrays"),
        **of_metadata(),
        "cut at the front": lambda call: _is_cut(call.facts, call.arguments["ubatch_slice"])[0],
        "cut at the back": lambda call: _is_cut(call.facts, call.arguments["ubatch_slice"])[1],
        "one request cut at both ends": lambda call: _is_cut_at_both_ends(
            call.facts, call.arguments["ubatch_slice"]
        ),
        "requests with tokens behind its last": lambda call: (
            call.facts.starts[call.arguments["ubatch_slice"].request_slice.stop - 1]
            >= call.arguments["ubatch_slice"].token_slice.stop
            and any(call.facts.query_lens[call.arguments["ubatch_slice"].request_slice][1:])
        ),
        "padding alone": lambda call: (
            call.arguments["ubatch_slice"].token_slice.start >= call.facts.num_tokens
        ),
        "the maxima are raised": lambda call: call.facts.raised > 0,
        "counts are NumPy ints": lambda call: call.facts.has_numpy_ints,
        "not causal": lambda call: not call.facts.causal,
    },
    faults=MAKE_FAULTS,
    aliases=views_of("attn_metadata", "block_table_tensor", "slot_mapping", "encoder_seq_lens"),
    has_device_path=True,
    takes_objects=True,
    laws=("a_slice_keeps_its_tokens", "writes_are_read_back", "padding_adds_nothing"),
    meaning=Meaning(
        _slice_of_batch,
        _sliced,
        calls=_slices_with_tokens,
        keeps=lambda call, access: access.of_tokens(_tokens_of_slice(call)),
    ),
)

test_make_metadata_with_slice = same_answer(MAKE)
test_make_metadata_with_slice_refuses = same_refusal(MAKE)
test_make_metadata_with_slice_laws = obeys(MAKE)


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
    batch = change.of(call.facts)
    points = [ubatch.token_slice.start for ubatch in call.arguments["ubatch_slices"][1:]]
    has_any = batch.num_reqs and batch.num_actual_tokens
    slices = slices_between(batch, _fair(batch, points)) if has_any else []
    return about(call, batch, common_attn_metadata=batch.metadata(), ubatch_slices=slices)


def _micro_batches(reader: Reader, call: Call) -> Iterator[Access]:
    parts = reader.answer(call)
    for ubatch, part in zip(call.arguments["ubatch_slices"], parts, strict=True):
        yield reader.access(part, call.facts.layout).shifted(ubatch.token_slice.start)


SPLIT = Contract(
    "split_attn_metadata",
    split_attn_metadata_calls,
    {
        **of_batch("padded requests at the end", "padded tokens at the end", "strided arrays"),
        **of_metadata(),
        "no micro-batches": lambda call: not call.arguments["ubatch_slices"],
        "two micro-batches": lambda call: len(call.arguments["ubatch_slices"]) == 2,
        "three micro-batches or more": lambda call: len(call.arguments["ubatch_slices"]) > 2,
        "a request cut at both ends": lambda call: any(
            _is_cut_at_both_ends(call.facts, u) for u in call.arguments["ubatch_slices"]
        ),
    },
    pairs=(("padded requests at the end", "a request cut at both ends"),),
    faults=SPLIT_FAULTS,
    aliases=views_of(
        "common_attn_metadata", "block_table_tensor", "slot_mapping", "encoder_seq_lens"
    ),
    has_device_path=True,
    takes_objects=True,
    laws=(
        *("split_partitions", "writes_are_read_back"),
        *("padding_adds_nothing", "any_order_means_the_same"),
    ),
    meaning=Meaning(_micro_batches, _cut_anew, calls=_fair_calls),
)

test_split_attn_metadata = same_answer(SPLIT)
test_split_attn_metadata_refuses = same_refusal(SPLIT)
test_split_attn_metadata_laws = obeys(SPLIT)


@law("create_ubatch_slices", create_ubatch_slices_calls)
def test_slices_cut_the_tokens(target: Target, call: Call) -> None:
    """The slices are consecutive, and their requests are those with a token in them."""
    with target.running(checked=True):
        slices = Side(target, call).run()
    lens = call.arguments["num_scheduled_tokens"].tolist()
    owner = [i for i, q in enumerate(lens) for _ in range(q)]
    edges = [0, *_points(call), len(owner)]
    assert [(s.token_slice.start, s.token_slice.stop) for s in slices] == list(
        itertools.pairwise(edges)
    )
    for s in slices:
        owners = owner[s.token_slice]
        assert (s.request_slice.start, s.request_slice.stop) == (owners[0], owners[-1] + 1)
        assert not s.is_empty()
        assert s.num_tokens == len(owners)


@pytest.mark.parametrize(
    ("tokens", "requests", "starts", "seq_lens", "computed"),
    [
        ((0, 9), (0, 2), [0, 4, 9], [6, 12], [2, 7]),
        ((9, 12), (1, 2), [0, 3], [15], [12]),
        ((9, 19), (1, 3), [0, 5, 10], [17, 9], [12, 4]),
    ],
)
def test_worked_examples_of_micro_batches(
    tokens: tuple[int, int],
    requests: tuple[int, int],
    starts: list[int],
    seq_lens: list[int],
    computed: list[int],
) -> None:
    """Reference gives the definition's table: starts 0 4 14 19, lengths 6 17 9."""
    rows = tuple(tuple(range(1, 10)) for _ in range(3))
    batch = Batch((4, 10, 5), (2, 7, 4), Layout(2), rows)
    ubatch = reference.UBatchSlice(slice(*requests), slice(*tokens))
    found = reference._make_metadata_with_slice(ubatch, batch.metadata())  # noqa: SLF001  # public
    assert starts == found.query_start_loc.tolist()
    assert seq_lens == found.seq_lens.tolist()
    assert computed == found.num_computed_tokens_cpu.tolist()
