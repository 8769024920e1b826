"""Invalid inputs of `make_kv_sharing_fast_prefill_common_attn_metadata`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.calls import Call
from conformance.contracts import Change, InvalidInput
from conformance.invalid_inputs.arrays import Array
from conformance.invalid_inputs.changes import (
    changed,
    checked_refusals,
    hinted,
    in_turn,
    of_hint,
    refusals,
    replaced,
    with_element,
)
from conformance.invalid_inputs.kinds import Int, invalid_by_kind, invalid_hint
from conformance.invalid_inputs.metadata import invalid_metadata

METADATA = "common_attn_metadata"
INDICES, NUMBER, HINT = "logits_indices_padded", "num_logits_indices", "logits_indices_cpu"


def comes_back(call: Call) -> bool:
    """Return whether the metadata itself comes back, and nothing else of it is looked at."""
    metadata = call.arguments[METADATA]
    return bool(metadata.max_query_len == 1 or metadata.logits_indices_padded is None)


def _of_cut(invalid: InvalidInput) -> InvalidInput:
    """Return an invalid input of metadata that are cut, and still are with it."""

    def change(call: Call) -> Call | None:
        bad = None if comes_back(call) else invalid.change(call)
        return None if bad is None or comes_back(bad) else bad

    return dataclasses.replace(invalid, change=change)


def _alone(name: str, value: object) -> Change:
    """Return the change that leaves one of the indices and their number."""
    without = (replaced(f"{METADATA}.{other}", None) for other in (INDICES, NUMBER))
    return in_turn(*without, replaced(f"{METADATA}.{name}", value))


def _too_large_number(metadata: Any) -> Any:
    return dataclasses.replace(metadata, num_logits_indices=len(metadata.logits_indices_padded) + 1)


def _index(at: int, value: Callable[[Any, int], int]) -> Change:
    """Return the change of the first (0) or last (-1) of the indices that count.

    Args:
        at: Which.
        value: Returns it, by the metadata and how many indices count, at least two.
    """

    def change(metadata: Any) -> Any:
        count = int(metadata.num_logits_indices)
        if count < 2:
            return None
        indices = metadata.logits_indices_padded
        bad = with_element(indices, at % count, value(metadata, count))
        return dataclasses.replace(metadata, logits_indices_padded=bad)

    return changed(METADATA, change)


def _hinted(change: Callable[[Any, int], Any], minimum: int) -> Change:
    """Return the change of the hint, by it and how many indices count, where those are enough."""

    def invalidate(call: Call) -> Call | None:
        count = int(call.arguments[METADATA].num_logits_indices or 0)
        return None if count < minimum else hinted(HINT, lambda array: change(array, count))(call)

    return invalidate


_CUT = [
    *invalid_by_kind(
        **{
            f"{METADATA}.{NUMBER}": Int(0, is_optional=True),
            f"{METADATA}.{INDICES}": Array([np.int16, np.float64], is_optional=True),
        }
    ),
    *refusals(
        ValueError,
        **{
            INDICES: {
                "there are fewer indices than the number": changed(METADATA, _too_large_number)
            }
        },
    ),
    *checked_refusals(
        ValueError,
        **{
            INDICES: {
                "an index is negative": _index(0, lambda *_: -1),
                "an index is past the last request": _index(-1, lambda m, _: m.query_start_loc[-1]),
                "an index is twice": _index(-1, lambda m, n: m.logits_indices_padded[n - 2]),
                "indices decrease": _index(0, lambda m, n: m.logits_indices_padded[n - 1]),
            }
        },
    ),
    *invalid_metadata(),
    *invalid_hint(HINT, Array([np.int16], is_optional=True)),
    *of_hint(
        refusals(
            ValueError,
            **{HINT: {"hint: too short": _hinted(lambda array, n: array[: n - 1], minimum=1)}},
        )
    ),
    *of_hint(
        checked_refusals(
            ValueError,
            **{
                HINT: {
                    "hint: another last index": _hinted(
                        lambda array, n: with_element(array, n - 1, array[n - 1] + 1), minimum=1
                    ),
                    "hint: zeros": _hinted(lambda array, _: array * 0, minimum=2),
                }
            },
        )
    ),
]

FAST_PREFILL_INVALID_INPUTS = [
    *refusals(
        ValueError,
        **{
            NUMBER: {"there are indices, and no number": _alone(INDICES, np.arange(1))},
            INDICES: {"there is a number, and no indices": _alone(NUMBER, 0)},
        },
    ),
    *map(_of_cut, _CUT),
]
