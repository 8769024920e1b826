"""Invalid inputs of the functions that cut a batch into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

import reference
from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array, Starts
from conformance.invalid_inputs.changes import (
    changed,
    changed_with_facts,
    checked_refusals,
    element,
    refusals,
    replaced,
)
from conformance.invalid_inputs.kinds import invalid_by_kind
from conformance.invalid_inputs.metadata import invalid_metadata
from conformance.strategies.batches import Batch


def _split_points(make: Callable[[int], object]) -> Change:
    """Return the change of the split points to what is made of the number of tokens."""

    def invalidate(call: Call) -> Call | None:
        points = make(int(call.arguments["num_scheduled_tokens"].sum()))
        return None if points is None else call.replacing(split_points=points)

    return invalidate


CREATE_INVALID_INPUTS = [
    *invalid_by_kind(num_scheduled_tokens=Array([np.int16])),
    *refusals(
        ValueError,
        num_scheduled_tokens={
            "there are no tokens": changed("num_scheduled_tokens", np.zeros_like),
            "there are no requests": replaced("num_scheduled_tokens", np.zeros(0, np.int32)),
        },
    ),
    *checked_refusals(
        ValueError,
        num_scheduled_tokens={
            "a count is negative": element("num_scheduled_tokens", lambda _, i: None if i else -1)
        },
    ),
    *refusals(
        ValueError,
        split_points={
            "a split point is 0": replaced("split_points", 0),
            "a split point of a list is 0": replaced("split_points", [0]),
            "the split point is the end": _split_points(lambda n: n),
            "a split point is the end": _split_points(lambda n: [n]),
            "split points are equal": _split_points(lambda n: [1, 1] if n > 1 else None),
            "split points decrease": _split_points(lambda n: [2, 1] if n > 2 else None),
        },
    ),
    *refusals(
        TypeError,
        split_points={
            "a split point is a float": replaced("split_points", [0.5]),
            "a split point is a bool": replaced("split_points", True),
            "split points are a tuple": replaced("split_points", (1,)),
        },
    ),
]

SLICE_STARTS_INVALID_INPUTS = [
    *invalid_by_kind(query_start_loc=Starts()),
    *refusals(
        ValueError,
        request_slice={
            "the slice ends outside": lambda call: call.replacing(
                request_slice=slice(0, call.facts.num_reqs + 1)
            ),
            "the slice is negative": replaced("request_slice", slice(-1, 0)),
            "the slice runs backwards": replaced("request_slice", slice(1, 0)),
            "the slice has a step": replaced("request_slice", slice(0, 0, 2)),
        },
    ),
    *refusals(
        TypeError,
        request_slice={
            "the slice has no start": replaced("request_slice", slice(None, 0)),
            "the slice is an int": replaced("request_slice", 0),
        },
    ),
]


Cut: TypeAlias = Callable[[reference.UBatchSlice, Batch], "reference.UBatchSlice | None"]
"""Makes a micro-batch's slices invalid; None where they offer nothing to break."""


def _begins_before(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
    tokens, requests = ubatch.token_slice, ubatch.request_slice
    later = next((i for i in range(batch.num_reqs) if batch.starts[i] > tokens.start), None)
    if later is None:
        return None
    return reference.UBatchSlice(slice(later, max(later + 1, requests.stop)), tokens)


def _begins_behind(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
    first = ubatch.token_slice.start
    if first >= batch.num_tokens or not batch.starts[1] <= first:
        return None
    return reference.UBatchSlice(slice(0, ubatch.request_slice.stop), ubatch.token_slice)


def _loses_tokens(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    stop = requests.stop - 1
    if stop <= requests.start or batch.starts[stop] >= min(tokens.stop, batch.num_tokens):
        return None
    return reference.UBatchSlice(slice(requests.start, stop), tokens)


def _requests_outside(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice:
    requests = slice(ubatch.request_slice.start, batch.num_reqs + 1)
    return reference.UBatchSlice(requests, ubatch.token_slice)


def _tokens_outside(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice:
    tokens = slice(ubatch.token_slice.start, batch.num_actual_tokens + 1)
    return reference.UBatchSlice(ubatch.request_slice, tokens)


INVALID_CUTS: dict[str, Cut] = {
    "has no requests": lambda u, _: reference.UBatchSlice(slice(0, 0), u.token_slice),
    "has no tokens": lambda u, _: reference.UBatchSlice(u.request_slice, slice(0, 0)),
    "has requests outside the batch": _requests_outside,
    "has tokens outside the batch": _tokens_outside,
    "begins before its first request": _begins_before,
    "begins after its first request": _begins_behind,
    "has tokens of requests outside it": _loses_tokens,
}


def _invalid_slices(argument: str, path: str) -> list[InvalidInput]:
    """Return the invalid inputs of one micro-batch's slices, which are at a path."""
    ways = {
        f"the micro-batch {name}": changed_with_facts(path, cut)
        for name, cut in INVALID_CUTS.items()
    }
    return refusals(ValueError, **{argument: ways})


MAKE_INVALID_INPUTS = [
    *invalid_metadata("attn_metadata"),
    *_invalid_slices("ubatch_slice", "ubatch_slice"),
]

SPLIT_INVALID_INPUTS = [
    *invalid_metadata(),
    *_invalid_slices("ubatch_slices", "ubatch_slices[-1]"),
    *refusals(TypeError, ubatch_slices={"the slices are not a list": replaced("ubatch_slices", 3)}),
]
