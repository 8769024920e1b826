"""Bad calls of `make_kv_sharing_fast_prefill_common_attn_metadata`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.contracts import Call, Change, InvalidInput
from conformance.invalid_inputs.metadata import metadata_faults

INDICES, NUMBER, HINT = "logits_indices_padded", "num_logits_indices", "logits_indices_cpu"


def comes_back(call: Call) -> bool:
    """Tell whether the metadata itself comes back, and nothing else of it is looked at."""
    metadata = call.arguments["common_attn_metadata"]
    return bool(metadata.max_query_len == 1 or metadata.logits_indices_padded is None)


def _of_armed(fault: InvalidInput) -> InvalidInput:
    """Return a fault of calls that are armed, and are so with it."""

    def breaks(call: Call) -> Call | None:
        bad = None if comes_back(call) else fault.change(call)
        return None if bad is None or comes_back(bad) else bad

    return dataclasses.replace(fault, change=breaks)


def _fields(change: Callable[[Any], dict[str, Any] | None]) -> Change:
    """Return a fault that changes fields of the metadata."""

    def breaks(call: Call) -> Call | None:
        metadata = call.arguments["common_attn_metadata"]
        fields = change(metadata)
        if fields is None:
            return None
        return call.replacing(common_attn_metadata=dataclasses.replace(metadata, **fields))

    return breaks


def _only(name: str, value: object) -> Change:
    fields: dict[str, Any] = {INDICES: None, NUMBER: None, name: value}
    return _fields(lambda _: fields)


def _indices(change: Callable[[Any], Any]) -> Change:
    return _fields(lambda m: {INDICES: change(m.logits_indices_padded)})


def _number(value: object) -> Change:
    return _fields(lambda _: {NUMBER: value})


def _one(at: int, value: Callable[[Any, int], int]) -> Change:
    """Return a fault that changes one of the indices that count: the first (0) or the last (-1)."""

    def change(metadata: Any) -> dict[str, Any] | None:
        count = int(metadata.num_logits_indices)
        if count < 2:
            return None
        bad = metadata.logits_indices_padded.copy()
        bad[at % count] = value(metadata, count)
        return {INDICES: bad}

    return _fields(change)


def _hinted(change: Callable[[Any, int], Any], *, least: int = 0) -> Change:
    """Return a fault of the hint, where there is one and so many indices count."""

    def breaks(call: Call) -> Call | None:
        count = call.arguments["common_attn_metadata"].num_logits_indices
        if HINT not in call.hints or count < least:
            return None
        return call.hinting(**{HINT: change(call.hints[HINT], int(count))})

    return breaks


def _other(array: Any, count: int) -> Any:
    bad = array.copy()
    bad[count - 1] += 1
    return bad


MAKE_WANTED_INVALID_INPUTS = [
    InvalidInput(
        "there are indices, and no number", ValueError, NUMBER, _only(INDICES, np.arange(1))
    ),
    InvalidInput("there is a number, and no indices", ValueError, INDICES, _only(NUMBER, 0)),
    *map(
        _of_armed,
        [
            InvalidInput("the number is negative", ValueError, NUMBER, _number(-1)),
            InvalidInput("the number is a bool", TypeError, NUMBER, _number(False)),
            InvalidInput("the number is a float", TypeError, NUMBER, _number(0.0)),
            InvalidInput(
                "there are fewer indices than the number",
                ValueError,
                INDICES,
                _fields(lambda m: {NUMBER: len(m.logits_indices_padded) + 1}),
            ),
            InvalidInput("indices are a list", TypeError, INDICES, _indices(np.ndarray.tolist)),
            InvalidInput(
                "indices are int16", TypeError, INDICES, _indices(lambda a: a.astype(np.int16))
            ),
            InvalidInput(
                "indices are floats", TypeError, INDICES, _indices(lambda a: a.astype(float))
            ),
            InvalidInput(
                "indices have two axes", ValueError, INDICES, _indices(lambda a: a[None].copy())
            ),
            InvalidInput(
                "an index is negative",
                ValueError,
                INDICES,
                _one(0, lambda *_: -1),
                is_value=True,
            ),
            InvalidInput(
                "an index is past the last request",
                ValueError,
                INDICES,
                _one(-1, lambda m, _: int(m.query_start_loc[-1])),
                is_value=True,
            ),
            InvalidInput(
                "an index stands twice",
                ValueError,
                INDICES,
                _one(-1, lambda m, n: int(m.logits_indices_padded[n - 2])),
                is_value=True,
            ),
            InvalidInput(
                "indices decrease",
                ValueError,
                INDICES,
                _one(0, lambda m, n: int(m.logits_indices_padded[n - 1])),
                is_value=True,
            ),
            *metadata_faults(),
            *(
                InvalidInput(f"hint: {name}", error, HINT, breaks, is_value, is_hint=True)
                for name, error, breaks, is_value in (
                    ("a list", TypeError, _hinted(lambda a, _: a.tolist()), False),
                    ("int16", TypeError, _hinted(lambda a, _: a.astype(np.int16)), False),
                    ("two axes", ValueError, _hinted(lambda a, _: a[None].copy()), False),
                    ("too short", ValueError, _hinted(lambda a, n: a[: n - 1], least=1), False),
                    ("another last index", ValueError, _hinted(_other, least=1), True),
                    ("zeros", ValueError, _hinted(lambda a, _: a * 0, least=2), True),
                )
            ),
        ],
    ),
]
