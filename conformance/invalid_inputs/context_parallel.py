"""Invalid inputs of `get_dcp_local_seq_lens`."""

from __future__ import annotations

import numpy as np

from conformance.arrays.guard_bands import Array as NumpyArray
from conformance.invalid_inputs.arrays import Array, Output
from conformance.invalid_inputs.changes import refusals, set_arguments
from conformance.invalid_inputs.kinds import MAX_INT32, Int, invalid_by_kind, size
from conformance.values.call import Call


def _out(call: Call) -> NumpyArray:
    ranks = (call.arguments.get("dcp_size", 1),) if call.arguments.get("dcp_rank") is None else ()
    return np.zeros((len(call.arguments["seq_lens"]), *ranks), np.int32)


def _out_is_lengths(call: Call) -> Call | None:
    lens = call.arguments["seq_lens"].copy()
    return call.replacing(seq_lens=lens, out=lens, dcp_size=1, dcp_rank=0) if len(lens) else None


LARGE_ROUND = set_arguments(dcp_size=2**16, dcp_rank=0, cp_kv_cache_interleave_size=2**15)

DCP_INVALID_INPUTS = [
    *invalid_by_kind(
        seq_lens=Array([np.int64], minimum=0),
        dcp_size=size(),
        dcp_rank=Int(0, MAX_INT32, below="dcp_size", is_optional=True),
        cp_kv_cache_interleave_size=size(),
        out=Output(_out, np.int64),
    ),
    *refusals(
        {(ValueError, "dcp_size"): {"a round of the ranks has 2**31 positions": LARGE_ROUND}}
    ),
    *refusals({(ValueError, "out"): {"out is the input": _out_is_lengths}}, is_value=True),
]
