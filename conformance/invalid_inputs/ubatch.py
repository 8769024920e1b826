"""Invalid inputs of the functions that cut a batch into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

import reference
from conformance.contracts.contract import InvalidInput
from conformance.invalid_inputs.arrays import Array, Starts
from conformance.invalid_inputs.changes import (
    Refusals,
    change_maker,
    changed,
    changed_with_source,
    refusals,
    set_arguments,
    where,
    with_element,
)
from conformance.invalid_inputs.kinds import MAX_INT64, invalid_by_kind
from conformance.invalid_inputs.metadata import (
    KINDS,
    first_with_tokens,
    invalid_fields,
    invalid_metadata,
)
from conformance.strategies.batch import Batch
from conformance.values.call import Call

COUNTS, POINTS, REQUESTS = "num_scheduled_tokens", "split_points", "request_slice"


@change_maker
def _split_points(call: Call, make: Callable[[int], object]) -> Call | None:
    """Change the split points to values derived from the number of tokens."""
    points = make(int(call.arguments[COUNTS].sum()))
    return None if points is None else call.replacing(split_points=points)


CREATE_REFUSALS: Refusals = {
    (ValueError, COUNTS): {
        "there are no tokens": changed(COUNTS, np.zeros_like),
        "there are no requests": np.zeros(0, np.int32),
    },
    (ValueError, POINTS): {
        "a split point is 0": 0,
        "a split point of a list is 0": [0],
        "the split point is the end": _split_points(lambda n: n),
        "a split point is the end": _split_points(lambda n: [n]),
        "split points are equal": _split_points(lambda n: [1, 1] if n > 1 else None),
        "split points decrease": _split_points(lambda n: [2, 1] if n > 2 else None),
        "a split point is the end, past int64": set_arguments(
            num_scheduled_tokens=np.full(2, MAX_INT64, np.int64), split_points=[2 * MAX_INT64]
        ),
        "a split point of a huge batch is 0": set_arguments(
            num_scheduled_tokens=np.full(2, MAX_INT64, np.int64), split_points=[0]
        ),
    },
    (TypeError, POINTS): {
        "a split point is a float": [0.5],
        "a split point is a bool": True,
        "split points are a tuple": (1,),
    },
}

NEGATIVE_COUNT = changed(COUNTS, lambda counts: with_element(counts, 0, -1))

CREATE_INVALID_INPUTS = [
    *invalid_by_kind(num_scheduled_tokens=Array([np.int16])),
    *refusals(CREATE_REFUSALS),
    *refusals({(ValueError, COUNTS): {"a count is negative": NEGATIVE_COUNT}}, is_value=True),
]

SLICE_REFUSALS: Refusals = {
    (ValueError, REQUESTS): {
        "the slice ends outside": changed_with_source(
            REQUESTS, lambda _, batch: slice(0, batch.num_reqs + 1)
        ),
        "the slice is negative": slice(-1, 0),
        "the slice runs backwards": slice(1, 0),
        "the slice has a step": slice(0, 0, 2),
        "the slice has a negative step": slice(0, 0, -(2**31)),
        "the slice has a step below int32": slice(0, 0, -(2**40)),
    },
    (TypeError, REQUESTS): {
        "the slice has no start": slice(None, 0),
        "the slice has no end": slice(0, None),
        "the slice ends at a bool": slice(0, False),
        "the slice starts at a bool": slice(False, 0),
        "the slice has a float as step": slice(0, 0, 1.0),
        "the slice has a bool as step": slice(0, 0, True),
        "the slice is an int": 0,
    },
}

SLICE_STARTS_INVALID_INPUTS = [
    *invalid_by_kind(query_start_loc=Starts()),
    *refusals(SLICE_REFUSALS),
]


Cut: TypeAlias = Callable[[reference.UBatchSlice, Batch], "reference.UBatchSlice | None"]
"""Makes a micro-batch's slices invalid; None if it does not apply."""


def _begins_before(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
    tokens, requests = ubatch.token_slice, ubatch.request_slice
    later = next((i for i in range(batch.num_reqs) if batch.starts[i] > tokens.start), None)
    if later is None:
        return None
    return reference.UBatchSlice(slice(later, max(later + 1, requests.stop)), tokens)


def _begins_after(ubatch: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
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


def _padding_of_a_request(_: reference.UBatchSlice, batch: Batch) -> reference.UBatchSlice | None:
    busy = first_with_tokens(batch)
    if busy is None or not batch.num_padding_tokens:
        return None
    padding = slice(batch.num_tokens, batch.num_actual_tokens)
    return reference.UBatchSlice(slice(busy, batch.num_reqs), padding)


INVALID_CUTS: dict[str, Cut] = {
    "has no requests": lambda u, _: reference.UBatchSlice(slice(0, 0), u.token_slice),
    "has no tokens": lambda u, _: reference.UBatchSlice(u.request_slice, slice(0, 0)),
    "has requests outside the batch": lambda u, batch: reference.UBatchSlice(
        slice(u.request_slice.start, batch.num_reqs + 1), u.token_slice
    ),
    "has tokens outside the batch": lambda u, batch: reference.UBatchSlice(
        u.request_slice, slice(u.token_slice.start, batch.num_actual_tokens + 1)
    ),
    "begins before its first request": _begins_before,
    "begins after its first request": _begins_after,
    "has tokens of requests outside it": _loses_tokens,
    "has padding alone, but begins with a request that has tokens": _padding_of_a_request,
}


def _invalid_slices(argument: str, path: str) -> list[InvalidInput]:
    """Return the invalid inputs of one micro-batch's slices, which are at a path."""
    ways = {
        f"the micro-batch {name}": changed_with_source(path, cut)
        for name, cut in INVALID_CUTS.items()
    }
    return refusals({(ValueError, argument): ways})


READ = [name for name in KINDS if name not in {"seq_lens", "max_query_len"}]
"""The fields of a batch that every micro-batch is cut from."""

MAKE_INVALID_INPUTS = [
    *invalid_metadata("attn_metadata"),
    *invalid_fields("attn_metadata", *READ),
    *_invalid_slices("ubatch_slice", "ubatch_slice"),
]

SPLIT_INVALID_INPUTS = [
    *invalid_metadata(),
    *where(
        lambda call: call.arguments["ubatch_slices"],
        invalid_fields("common_attn_metadata", *READ),
    ),
    *_invalid_slices("ubatch_slices", "ubatch_slices[-1]"),
    *refusals({(TypeError, "ubatch_slices"): {"the slices are not a list": 3}}),
]
