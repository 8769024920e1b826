"""Bad calls of the functions that view a uniform batch request by request, and back."""

from __future__ import annotations

import numpy as np

from conformance.contracts import Call, InvalidInput, replaced
from conformance.invalid_inputs.arrays import changed
from conformance.strategies.spec_decode import laid_out


def _does_not_divide(call: Call) -> Call | None:
    tokens = len(call.arguments["query"])
    return call.replacing(batch_size=tokens + 1) if tokens else None


QUERY_INVALID_INPUTS = [
    InvalidInput("the query is a list", TypeError, "query", changed("query", np.ndarray.tolist)),
    InvalidInput("no query", TypeError, "query", replaced("query", None)),
    InvalidInput(
        "a query of two axes", ValueError, "query", changed("query", lambda a: a[:, 0:1, 0])
    ),
    InvalidInput("a query of four axes", ValueError, "query", changed("query", lambda a: a[None])),
    *(
        InvalidInput(f"batch_size is {bad!r}", error, "batch_size", replaced("batch_size", bad))
        for error, bad in (
            (ValueError, 0),
            (ValueError, -1),
            (TypeError, True),
            (TypeError, np.True_),
            (TypeError, 1.0),
            (TypeError, None),
        )
    ),
    InvalidInput(
        "batch_size does not divide the tokens", ValueError, "batch_size", _does_not_divide
    ),
]


def _apart(call: Call) -> Call:
    """Return the call with requests that do not lie one behind another."""
    dtype = call.arguments["attn_output"].dtype.type
    whole = laid_out((9, 2, 3), "dense", dtype).reshape(3, 3, 2, 3)
    return call.replacing(attn_output=whole[:, :2])


def _transposed(call: Call) -> Call:
    """Return the call with each request's tokens interleaved with the others'."""
    dtype = call.arguments["attn_output"].dtype.type
    whole = laid_out((6, 2, 3), "dense", dtype).reshape(3, 2, 2, 3)
    return call.replacing(attn_output=whole.transpose(1, 0, 2, 3))


OUTPUT = "attn_output"

OUTPUT_INVALID_INPUTS = [
    InvalidInput("the output is a list", TypeError, OUTPUT, changed(OUTPUT, np.ndarray.tolist)),
    InvalidInput("no output", TypeError, OUTPUT, replaced(OUTPUT, None)),
    InvalidInput("an output of two axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros((3, 2)))),
    InvalidInput("an output of no axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros(()))),
    InvalidInput(
        "an output of five axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros((1,) * 5))
    ),
    InvalidInput("requests lie apart", ValueError, OUTPUT, _apart),
    InvalidInput("requests are interleaved", ValueError, OUTPUT, _transposed),
]
