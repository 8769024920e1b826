"""Bad calls of `compute_causal_conv1d_metadata`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput
from conformance.invalid_inputs.arrays import query_start_loc_faults

HINT = "query_start_loc_p_cpu"


def _hinted(change: Callable[[Any], Any]) -> Change:
    def breaks(call: Call) -> Call | None:
        return call.hinting(**{HINT: change(call.hints[HINT])}) if HINT in call.hints else None

    return breaks


def _other(starts: Any) -> Any:
    bad = starts.copy()
    bad[-1] += 9
    return bad


def _none_for_many(call: Call) -> Call | None:
    """Return the call with no tokens on the CPU, and more programs than there is room for then.

    The first sequence takes half of the room: what is left for the second depends on that.
    """
    if HINT not in call.hints:
        return None
    many, none = np.array([0, 2**13, 2**14 + 1], np.int32), np.zeros(3, np.int32)
    return call.replacing(query_start_loc_p=many).hinting(query_start_loc_p_cpu=none)


CONV1D_INVALID_INPUTS = [
    InvalidInput(
        "hint: no tokens for more programs than there is room for",
        ValueError,
        HINT,
        _none_for_many,
        is_value=True,
        is_hint=True,
    ),
    *query_start_loc_faults("query_start_loc_p"),
    *(
        InvalidInput(f"hint: {name}", error, HINT, _hinted(change), is_value, is_hint=True)
        for name, error, change, is_value in (
            ("a list", TypeError, np.ndarray.tolist, False),
            ("int64", TypeError, lambda a: a.astype(np.int64), False),
            ("two axes", ValueError, lambda a: a[None].copy(), False),
            ("too short", ValueError, lambda a: a[:-1], False),
            ("too long", ValueError, lambda a: np.append(a, a[-1:]), False),
            ("more tokens", ValueError, _other, True),
            ("does not start at 0", ValueError, lambda a: a + 1, True),
        )
    ),
]
