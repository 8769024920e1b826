"""Micro-batches: a batch cut into consecutive pieces that run next to each other."""

from __future__ import annotations

import itertools

import numpy as np

import reference
from conformance.aliases import views_of
from conformance.calls import Call
from conformance.contracts import Contract
from conformance.evaluation import exception_of
from conformance.interpretations.ubatch import (
    CREATED,
    MICRO_BATCHES,
    SLICE,
    STARTS,
    is_cut,
    points_of,
)
from conformance.invalid_inputs.ubatch import (
    CREATE_INVALID_INPUTS,
    MAKE_INVALID_INPUTS,
    SLICE_STARTS_INVALID_INPUTS,
    SPLIT_INVALID_INPUTS,
)
from conformance.invocations import Invocation
from conformance.properties import law
from conformance.strategies import cached as st
from conformance.strategies.batches import Batch, of_batch, of_metadata
from conformance.strategies.ubatch import (
    create_ubatch_slices_calls,
    make_metadata_with_slice_calls,
    slice_query_start_locs_calls,
    split_attn_metadata_calls,
)
from conformance.targets import Target


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
    laws=(
        "split_partitions",
        "padding_adds_nothing",
        "any_order_means_the_same",
    ),
    interpretation=CREATED,
    has_arrays=True,
)


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
    laws=(
        "a_slice_keeps_its_tokens",
        "writes_are_read_back",
        "padding_adds_nothing",
    ),
    interpretation=STARTS,
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
    laws=(
        "a_slice_keeps_its_tokens",
        "writes_are_read_back",
        "padding_adds_nothing",
    ),
    interpretation=SLICE,
    on_device=(
        *(
            f"attn_metadata.{name}_cpu"
            for name in ("query_start_loc", "seq_lens", "num_computed_tokens")
        ),
    ),
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
    ubatch = target.lookup("UBatchSlice")(slice(r0, r1), slice(t0, t1))
    assert (r1 <= r0 or t1 <= t0) is ubatch.is_empty()
    assert t1 - t0 == ubatch.num_tokens
    assert exception_of(lambda: setattr(ubatch, "token_slice", slice(0, 1))) is not None
