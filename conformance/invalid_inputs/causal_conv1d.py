"""Invalid inputs of `compute_causal_conv1d_metadata`."""

from __future__ import annotations

import numpy as np

from conformance.invalid_inputs.arrays import Array, Starts
from conformance.invalid_inputs.changes import Refusals, hinted, refusals, with_element
from conformance.invalid_inputs.kinds import invalid_by_kind, invalid_hint
from conformance.values.call import Call

HINT = "query_start_loc_p_cpu"


def _none_for_many(call: Call) -> Call | None:
    """Return the call with no tokens in the hint, but more programs than the outputs then hold.

    The first sequence takes half of the space, so the space left for the second depends on it.
    """
    if HINT not in call.hints:
        return None
    many, none = np.array([0, 2**13, 2**14 + 1], np.int32), np.zeros(3, np.int32)
    return call.replacing(query_start_loc_p=many).hinting(query_start_loc_p_cpu=none)


HINT_LENGTHS: Refusals = {
    (ValueError, HINT): {
        "hint: too short": hinted(HINT, lambda starts: starts[:-1]),
        "hint: too long": hinted(HINT, lambda starts: np.append(starts, starts[-1:])),
    }
}

HINT_VALUES: Refusals = {
    (ValueError, HINT): {
        "hint: no tokens for more programs than there is room for": _none_for_many,
        "hint: more tokens": hinted(HINT, lambda s: with_element(s, -1, s[-1] + 9)),
        "hint: does not start at 0": hinted(HINT, lambda starts: starts + 1),
    }
}

CONV1D_INVALID_INPUTS = [
    *invalid_by_kind(query_start_loc_p=Starts()),
    *invalid_hint(HINT, Array([np.int64], is_optional=True)),
    *refusals(HINT_LENGTHS, is_hint=True),
    *refusals(HINT_VALUES, is_hint=True, is_value=True),
]
