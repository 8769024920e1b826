"""Finds where a difference lies in the batch, and whether the wrong value was ever written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance.arrays.guard_bands import poisoned
from conformance.values.call import Call
from conformance.values.comparison import field_name
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import children, is_object

PER_REQUEST = frozenset(
    {
        "seq_lens",
        "seq_lens_cpu",
        "num_computed_tokens_cpu",
        "block_table",
        "block_table_tensor",
        "idx_mapping",
        "num_scheduled_tokens",
        "dcp_local_seq_lens",
        "encoder_seq_lens",
    }
)
"""Names whose first axis is the request."""

PER_TOKEN = frozenset({"positions", "slot_mapping", "out"})
"""Names whose axis is the token of the step; that of `out` only where the call has tokens."""

NEVER_WRITTEN = frozenset(
    (
        *(poisoned((1,), dtype).item() for dtype in (np.int16, np.int32, np.int64)),
        *(torch.iinfo(dtype).max for dtype in (torch.int32, torch.int64)),
    )
)
"""The values with which the harness and torch's deterministic mode fill new int memory."""


def describe_place(call: Call, difference: Difference) -> str:
    """Return where a difference lies, and whether its value is that of unwritten memory.

    >>> out = np.array([7, 7], np.int32)
    >>> call = Call("get_dcp_local_seq_lens", {"seq_lens": np.array([2]), "out": out})
    >>> describe_place(call, Difference(Verdict.VALUE, "out", (1,), 7, 0))
    'as before the call'
    """
    return ", ".join(filter(None, (locate(call, difference), _why_unwritten(call, difference))))


def _why_unwritten(call: Call, difference: Difference) -> str:
    """Return the evidence that a wrong value was never written; empty if there is none."""
    if difference.verdict is not Verdict.VALUE or not difference.index:
        return ""
    before = call.arguments.get(difference.path)
    if isinstance(before, np.ndarray) and before.ndim == len(difference.index):
        return "as before the call" if before[difference.index] == difference.got else ""
    is_filled = type(difference.got) is int and difference.got in NEVER_WRITTEN
    return "the value of uninitialized memory" if is_filled else ""


def locate(call: Call, difference: Difference) -> str:
    """Return the place of a difference in the batch: request, token, column.

    Fields of a result that has its own requests (virtual ones, those of a micro-batch) are counted
    in that result.
    """
    is_in_a_guard_band = difference.path.startswith("memory around")
    has_values = difference.verdict in {Verdict.VALUE, Verdict.CHANGE}
    if not has_values or not difference.index or is_in_a_guard_band:
        return ""
    name = field_name(difference.path)
    starts = query_starts(call)
    first, *rest = difference.index
    if call.function.startswith("compute_slot_mapping") or name in PER_TOKEN:
        if starts is None or difference.path.startswith("result["):
            return f"token {first}" if name != "out" else ""
        if first >= starts[-1]:
            return f"token {first}, padding"
        request = int(np.searchsorted(starts, first, side="right")) - 1
        number = count_tokens(starts, request)
        return f"request {request}, token {first - starts[request]} of its {number}"
    if name in PER_REQUEST:
        return f"request {first}" + (f", column {rest[0]}" if rest else "")
    return ""


def count_tokens(starts: list[int], request: int) -> int:
    """Return how many tokens a request has."""
    return starts[request + 1] - starts[request]


def query_starts(call: Call) -> list[int] | None:
    """Return the batch's query starts, or None if the call has no valid ones."""
    starts = flat_arguments(call).get("query_start_loc")
    if not isinstance(starts, np.ndarray) or starts.ndim != 1 or not len(starts):
        return None
    found = starts.tolist()
    return found if found == sorted(found) else None


def flat_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments, with objects replaced by their fields, without equal CPU copies."""
    found: dict[str, Any] = {}
    for name, value in call.arguments.items():
        found |= children(value) if is_object(value) else {name: value}
    return {name: found[name] for name in found if not _is_copy(name, found)}


def _is_copy(name: str, values: dict[str, Any]) -> bool:
    """Return whether a field is the copy of another on the CPU, with the same values."""
    whole = name.removesuffix("_cpu")
    return whole != name and np.array_equal(values[name], values.get(whole, ()))
