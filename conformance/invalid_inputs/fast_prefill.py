"""Invalid inputs of `make_kv_sharing_fast_prefill_common_attn_metadata`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts.contract import Change
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    Refusals,
    chained,
    change_maker,
    changed,
    hinted,
    refusals,
    replaced,
    with_element,
)
from conformance.invalid_inputs.kinds import Int, invalid_by_kind, invalid_hint
from conformance.invalid_inputs.metadata import KINDS, invalid_fields, invalid_metadata
from conformance.values.call import Call

METADATA = "common_attn_metadata"
INDICES, NUMBER, HINT = "logits_indices_padded", "num_logits_indices", "logits_indices_cpu"


def comes_back(call: Call) -> bool:
    """Return whether the function returns the metadata itself, without reading more of it."""
    metadata = call.arguments[METADATA]
    return bool(metadata.max_query_len == 1 or metadata.logits_indices_padded is None)


@change_maker
def _of_cut(call: Call, change: Change) -> Call | None:
    """Change metadata, unless it is returned as it is before or after the change."""
    bad = None if comes_back(call) else change(call)
    return None if bad is None or comes_back(bad) else bad


def _alone(name: str, value: object) -> Change:
    """Return the change that leaves only the indices or only their number."""
    without = (replaced(f"{METADATA}.{other}", None) for other in (INDICES, NUMBER))
    return chained(*without, replaced(f"{METADATA}.{name}", value))


def _too_large_number(metadata: Any) -> Any:
    return dataclasses.replace(metadata, num_logits_indices=len(metadata.logits_indices_padded) + 1)


@change_maker
def _index(call: Call, at: int, value: Callable[[Any, int], int]) -> Call | None:
    """Change the first (0) or last (-1) of the indices before the padding.

    `value` takes the metadata and the number of these indices, which is at least two.
    """
    metadata = call.arguments[METADATA]
    count = int(metadata.num_logits_indices)
    if count < 2:
        return None
    bad = with_element(metadata.logits_indices_padded, at % count, value(metadata, count))
    return replaced(f"{METADATA}.{INDICES}", bad)(call)


@change_maker
def _hinted(call: Call, change: Callable[[Any, int], Any], minimum: int) -> Call | None:
    """Change the hint, given it and the number of indices, if there are at least `minimum`."""
    count = int(call.arguments[METADATA].num_logits_indices or 0)
    return None if count < minimum else hinted(HINT, lambda array: change(array, count))(call)


TOO_FEW = changed(METADATA, _too_large_number)

WRONG_INDICES: Refusals = {
    (ValueError, INDICES): {
        "an index is negative": _index(0, lambda *_: -1),
        "an index is past the last request": _index(-1, lambda m, _: m.query_start_loc[-1]),
        "an index is twice": _index(-1, lambda m, n: m.logits_indices_padded[n - 2]),
        "indices decrease": _index(0, lambda m, n: m.logits_indices_padded[n - 1]),
    }
}

SHORT_HINT = _hinted(lambda array, n: array[: n - 1], minimum=1)

WRONG_HINTS: Refusals = {
    (ValueError, HINT): {
        "hint: another last index": _hinted(
            lambda array, n: with_element(array, n - 1, array[n - 1] + 1), minimum=1
        ),
        "hint: zeros": _hinted(lambda array, _: array * 0, minimum=2),
    }
}

READ = [name for name in KINDS if name not in {"causal", "encoder_seq_lens"}]
"""The fields that the function rewrites or keeps."""

_CUT = [
    *invalid_by_kind(
        **{
            f"{METADATA}.{NUMBER}": Int(0, is_optional=True),
            f"{METADATA}.{INDICES}": Array([np.int16, np.float64], is_optional=True),
        }
    ),
    *refusals({(ValueError, INDICES): {"there are fewer indices than the number": TOO_FEW}}),
    *refusals(WRONG_INDICES, is_value=True),
    *invalid_fields(METADATA, *READ),
    *invalid_metadata(),
    *invalid_hint(HINT, Array([np.int16], is_optional=True)),
    *refusals({(ValueError, HINT): {"hint: too short": SHORT_HINT}}, is_hint=True),
    *refusals(WRONG_HINTS, is_value=True, is_hint=True),
]

ALONE: Refusals = {
    (ValueError, NUMBER): {"there are indices, and no number": _alone(INDICES, np.arange(1))},
    (ValueError, INDICES): {"there is a number, and no indices": _alone(NUMBER, 0)},
}

FAST_PREFILL_INVALID_INPUTS = [
    *refusals(ALONE),
    *(dataclasses.replace(invalid, change=_of_cut(invalid.change)) for invalid in _CUT),
]
