"""Bad calls of the functions that view a uniform batch request by request, and back."""

from __future__ import annotations

import numpy as np

from conformance.contracts import Call, Draw, Fault, replaced
from conformance.faults.arrays import changed
from conformance.strategies.spec_decode import laid_out


def _does_not_divide(call: Call, _: Draw) -> Call | None:
    tokens = len(call.arguments["query"])
    return call.replacing(batch_size=tokens + 1) if tokens else None


QUERY_FAULTS = [
    Fault("the query is a list", TypeError, "query", changed("query", np.ndarray.tolist)),
    Fault("no query", TypeError, "query", replaced("query", None)),
    Fault("a query of two axes", ValueError, "query", changed("query", lambda a: a[:, 0:1, 0])),
    Fault("a query of four axes", ValueError, "query", changed("query", lambda a: a[None])),
    *(
        Fault(f"batch_size is {bad!r}", error, "batch_size", replaced("batch_size", bad))
        for error, bad in (
            (ValueError, 0),
            (ValueError, -1),
            (TypeError, True),
            (TypeError, np.True_),
            (TypeError, 1.0),
            (TypeError, None),
        )
    ),
    Fault("batch_size does not divide the tokens", ValueError, "batch_size", _does_not_divide),
]


def _apart(call: Call, _: Draw) -> Call:
    """Return the call with requests that do not lie one behind another."""
    dtype = call.arguments["attn_output"].dtype.type
    whole = laid_out((9, 2, 3), "dense", dtype).reshape(3, 3, 2, 3)
    return call.replacing(attn_output=whole[:, :2])


def _transposed(call: Call, _: Draw) -> Call:
    """Return the call with each request's tokens interleaved with the others'."""
    dtype = call.arguments["attn_output"].dtype.type
    whole = laid_out((6, 2, 3), "dense", dtype).reshape(3, 2, 2, 3)
    return call.replacing(attn_output=whole.transpose(1, 0, 2, 3))


OUTPUT = "attn_output"

OUTPUT_FAULTS = [
    Fault("the output is a list", TypeError, OUTPUT, changed(OUTPUT, np.ndarray.tolist)),
    Fault("no output", TypeError, OUTPUT, replaced(OUTPUT, None)),
    Fault("an output of two axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros((3, 2)))),
    Fault("an output of no axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros(()))),
    Fault("an output of five axes", ValueError, OUTPUT, replaced(OUTPUT, np.zeros((1,) * 5))),
    Fault("requests lie apart", ValueError, OUTPUT, _apart),
    Fault("requests are interleaved", ValueError, OUTPUT, _transposed),
]
