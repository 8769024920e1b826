"""Bad calls of the functions that cut a batch into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

import reference
from conformance.contracts import Call, Change, InvalidInput, replaced
from conformance.invalid_inputs.arrays import array_faults, changed, query_start_loc_faults
from conformance.invalid_inputs.metadata import metadata_faults
from conformance.strategies.batches import Batch


def _split_points(make: Callable[[int], object]) -> Change:
    def breaks(call: Call) -> Call | None:
        points = make(int(call.arguments["num_scheduled_tokens"].sum()))
        return None if points is None else call.replacing(split_points=points)

    return breaks


def _negative_count(array: Any) -> Any:
    bad = array.copy()
    bad[0] = -1
    return bad


CREATE_INVALID_INPUTS = [
    *array_faults("num_scheduled_tokens", np.int16),
    InvalidInput(
        "there are no tokens",
        ValueError,
        "num_scheduled_tokens",
        changed("num_scheduled_tokens", np.zeros_like),
    ),
    InvalidInput(
        "there are no requests",
        ValueError,
        "num_scheduled_tokens",
        replaced("num_scheduled_tokens", np.zeros(0, np.int32)),
    ),
    InvalidInput(
        "a count is negative",
        ValueError,
        "num_scheduled_tokens",
        changed("num_scheduled_tokens", _negative_count),
        is_value=True,
    ),
    InvalidInput("a split point is 0", ValueError, "split_points", replaced("split_points", 0)),
    InvalidInput(
        "a split point of a list is 0", ValueError, "split_points", replaced("split_points", [0])
    ),
    InvalidInput(
        "the split point is the end", ValueError, "split_points", _split_points(lambda n: n)
    ),
    InvalidInput(
        "a split point is the end", ValueError, "split_points", _split_points(lambda n: [n])
    ),
    InvalidInput(
        "split points are equal",
        ValueError,
        "split_points",
        _split_points(lambda n: [1, 1] if n > 1 else None),
    ),
    InvalidInput(
        "split points decrease",
        ValueError,
        "split_points",
        _split_points(lambda n: [2, 1] if n > 2 else None),
    ),
    InvalidInput(
        "a split point is a float", TypeError, "split_points", replaced("split_points", [0.5])
    ),
    InvalidInput(
        "a split point is a bool", TypeError, "split_points", replaced("split_points", True)
    ),
    InvalidInput(
        "split points are a tuple", TypeError, "split_points", replaced("split_points", (1,))
    ),
]


def _request_slice(make: Callable[[int], slice]) -> Change:
    return lambda call: call.replacing(request_slice=make(call.facts.num_reqs))


SLICE_STARTS_INVALID_INPUTS = [
    *query_start_loc_faults(),
    InvalidInput(
        "the slice ends outside",
        ValueError,
        "request_slice",
        _request_slice(lambda n: slice(0, n + 1)),
    ),
    InvalidInput(
        "the slice is negative",
        ValueError,
        "request_slice",
        replaced("request_slice", slice(-1, 0)),
    ),
    InvalidInput(
        "the slice runs backwards",
        ValueError,
        "request_slice",
        replaced("request_slice", slice(1, 0)),
    ),
    InvalidInput(
        "the slice has a step",
        ValueError,
        "request_slice",
        replaced("request_slice", slice(0, 0, 2)),
    ),
    InvalidInput(
        "the slice has no start",
        TypeError,
        "request_slice",
        replaced("request_slice", slice(None, 0)),
    ),
    InvalidInput("the slice is an int", TypeError, "request_slice", replaced("request_slice", 0)),
]


Cut: TypeAlias = Callable[[reference.UBatchSlice, Batch], "reference.UBatchSlice | None"]
"""Makes a micro-batch's slices bad; None where they offer nothing to break."""


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


BAD_CUTS: dict[str, Cut] = {
    "has no requests": lambda u, _: reference.UBatchSlice(slice(0, 0), u.token_slice),
    "has no tokens": lambda u, _: reference.UBatchSlice(u.request_slice, slice(0, 0)),
    "has requests outside the batch": _requests_outside,
    "has tokens outside the batch": _tokens_outside,
    "begins before its first request": _begins_before,
    "begins behind its first request": _begins_behind,
    "has tokens of requests outside it": _loses_tokens,
}


def _one_slice(argument: str, cut: Cut) -> Change:
    def breaks(call: Call) -> Call | None:
        bad = cut(call.arguments[argument], call.facts)
        return None if bad is None else call.replacing(**{argument: bad})

    return breaks


def _last_slice(argument: str, cut: Cut) -> Change:
    def breaks(call: Call) -> Call | None:
        given = call.arguments[argument]
        bad = cut(given[-1], call.facts) if given else None
        return None if bad is None else call.replacing(**{argument: [*given[:-1], bad]})

    return breaks


def _slice_faults(argument: str, breaks: Callable[[str, Cut], Change]) -> list[InvalidInput]:
    """Return the faults of one micro-batch's slices."""
    return [
        InvalidInput(f"the micro-batch {name}", ValueError, argument, breaks(argument, cut))
        for name, cut in BAD_CUTS.items()
    ]


MAKE_INVALID_INPUTS = [
    *metadata_faults("attn_metadata"),
    *_slice_faults("ubatch_slice", _one_slice),
]

SPLIT_INVALID_INPUTS = [
    *metadata_faults(),
    *_slice_faults("ubatch_slices", _last_slice),
    InvalidInput(
        "the slices are no list", TypeError, "ubatch_slices", replaced("ubatch_slices", 3)
    ),
]
