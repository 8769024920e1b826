"""Bad calls of `get_dcp_local_seq_lens`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput
from conformance.invalid_inputs.arrays import array_faults, element, int_faults
from conformance.strategies.arrays import Array


def _out(change: Callable[[Array], Any]) -> Change:
    """Return a fault of `out`: what is made of one that is as it should be."""

    def breaks(call: Call) -> Call | None:
        size, is_of_all = call.arguments.get("dcp_size", 1), call.arguments.get("dcp_rank") is None
        shape = (len(call.arguments["seq_lens"]), *((size,) if is_of_all else ()))
        bad = change(np.zeros(shape, np.int32))
        return None if bad is None else call.replacing(out=bad)

    return breaks


def _in_pieces(out: Array) -> Array | None:
    return np.repeat(out, 2, axis=-1)[..., ::2] if out.size > 1 else None


def _out_is_lengths(call: Call) -> Call | None:
    lens = call.arguments["seq_lens"].copy()
    if not len(lens):
        return None
    one_rank = {"dcp_size": 1, "dcp_rank": 0}
    return call.replacing(seq_lens=lens, out=lens, **one_rank)


DCP_INVALID_INPUTS = [
    *array_faults("seq_lens", np.int64),
    *int_faults("dcp_size"),
    *int_faults("dcp_rank", least=0),
    *int_faults("cp_kv_cache_interleave_size"),
    InvalidInput(
        "the rank is outside the world",
        ValueError,
        "dcp_rank",
        lambda call: call.replacing(dcp_rank=call.arguments.get("dcp_size", 1)),
    ),
    InvalidInput(
        "a round of the ranks has 2**31 positions",
        ValueError,
        "dcp_size",
        lambda call: call.replacing(dcp_size=2**16, dcp_rank=0, cp_kv_cache_interleave_size=2**15),
    ),
    InvalidInput(
        "a sequence length is negative",
        ValueError,
        "seq_lens",
        element("seq_lens", lambda _, i: -1 if i == 0 else None),
        is_value=True,
    ),
    *(
        InvalidInput(f"out {what}", error, "out", _out(change))
        for what, error, change in (
            ("is a list", TypeError, np.ndarray.tolist),
            ("has another dtype", TypeError, lambda out: out.astype(np.int64)),
            ("has one axis too many", ValueError, lambda out: out[..., None].copy()),
            ("is too short", ValueError, lambda out: out[1:].copy() if len(out) else None),
            ("lies in pieces", ValueError, _in_pieces),
        )
    ),
    InvalidInput("out is the input", ValueError, "out", _out_is_lengths, is_value=True),
]
