"""Invalid inputs of the functions that reshape tensors for speculative decoding."""

from __future__ import annotations

import numpy as np

from conformance.arrays.guard_bands import Array as NumpyArray
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import Refusals, changed, refusals, replaced
from conformance.invalid_inputs.kinds import Int, invalid_by_kind
from conformance.strategies.spec_decode import laid_out
from conformance.values.call import Call


def _does_not_divide(call: Call) -> Call | None:
    tokens = len(call.arguments["query"])
    return call.replacing(batch_size=tokens + 1) if tokens else None


QUERY_REFUSALS: Refusals = {
    (ValueError, "batch_size"): {"batch_size does not divide the tokens": _does_not_divide}
}

QUERY_INVALID_INPUTS = [
    *invalid_by_kind(query=Array(ndim=3), batch_size=Int()),
    *refusals(QUERY_REFUSALS),
]


def _apart(output: NumpyArray) -> NumpyArray:
    """Return an output whose requests are not adjacent in memory."""
    whole: NumpyArray = laid_out((9, 2, 3), "dense", output.dtype.type).reshape(3, 3, 2, 3)
    return whole[:, :2]


def _interleaved(output: NumpyArray) -> NumpyArray:
    """Return an output whose requests are interleaved in memory."""
    whole: NumpyArray = laid_out((6, 2, 3), "dense", output.dtype.type).reshape(3, 2, 2, 3)
    return whole.transpose(1, 0, 2, 3)


OUTPUT_REFUSALS: Refusals = {
    (ValueError, "attn_output"): {
        "attn_output has two axes": replaced("attn_output", np.zeros((3, 2))),
        "attn_output has five axes": replaced("attn_output", np.zeros((1,) * 5)),
        "requests lie apart": changed("attn_output", _apart),
        "requests are interleaved": changed("attn_output", _interleaved),
    }
}

OUTPUT_INVALID_INPUTS = [
    *invalid_by_kind(attn_output=Array(ndim=None)),
    *refusals(OUTPUT_REFUSALS),
]
