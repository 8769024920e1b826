"""What a person reads when a target's answer is not the expected one."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.calls import Call, shorten
from conformance.comparison import Difference, Verdict, field_name
from conformance.values import children, is_object

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
"""Names whose axis is the token of the step."""


class Mismatch(AssertionError):  # noqa: N818  # it is a verdict about a target, not a program's error
    """An answer that is not the one `reference` gives.

    Args:
        call: The call, shrunk.
        target: The name of the target that answered otherwise.
        difference: The first difference.
        condition: Under which it was called, if not alone: "after refused calls".
    """

    def __init__(
        self, call: Call, target: str, difference: Difference, condition: str = ""
    ) -> None:
        self.call, self.target, self.difference = call, target, difference
        where = locate(call, difference)
        super().__init__(
            f"{call.function} on {target}{condition and f', {condition}'}:"
            f" another {difference.verdict.value}\n"
            f"    {difference.line}{f'  ({where})' if where else ''}\n"
            f"{render(call)}"
        )


def locate(call: Call, difference: Difference) -> str:
    """Return where a difference lies in the words of the batch: request, token, column.

    Fields of a result that has its own requests (virtual ones, those of a micro-batch) are counted
    in that result.
    """
    is_in_a_guard_band = difference.path.startswith("memory around")
    if difference.verdict is not Verdict.VALUE or not difference.index or is_in_a_guard_band:
        return ""
    name = field_name(difference.path)
    starts = query_starts(call)
    first, *rest = difference.index
    if call.function.startswith("compute_slot_mapping") or name in PER_TOKEN:
        if starts is None or difference.path.startswith("result["):
            return f"token {first}"
        if first >= starts[-1]:
            return f"token {first}, padding"
        request = int(np.searchsorted(starts, first, side="right")) - 1
        return (
            f"request {request}, token {first - starts[request]} of its {_count(starts, request)}"
        )
    if name in PER_REQUEST:
        return f"request {first}" + (f", column {rest[0]}" if rest else "")
    return ""


def _count(starts: list[int], request: int) -> int:
    return starts[request + 1] - starts[request]


def query_starts(call: Call) -> list[int] | None:
    """Return the batch's query starts, where the call has them."""
    starts = flat_arguments(call).get("query_start_loc")
    if not isinstance(starts, np.ndarray) or starts.ndim != 1 or not len(starts):
        return None
    found = starts.tolist()
    return found if found == sorted(found) else None


def flat_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments with the fields of metadata in their places."""
    found: dict[str, Any] = {}
    for name, value in call.arguments.items():
        found |= children(value) if is_object(value) else {name: value}
    return {name: found[name] for name in found if not _is_copy(name, found)}


def _is_copy(name: str, values: dict[str, Any]) -> bool:
    """Return whether a field is the copy of another on the CPU, with the same values."""
    whole = name.removesuffix("_cpu")
    return whole != name and np.array_equal(values[name], values.get(whole, ()))


def render(call: Call) -> str:
    """Return a call as a person would write it down: requests as rows, the rest above them.

    >>> starts, positions = np.array([0, 3, 4], np.int32), np.array([1, 2, 3, 0])
    >>> table = np.array([[5, 9], [7, 3]], np.int32)
    >>> arguments = {"block_table": table, "query_start_loc": starts}
    >>> arguments |= {"positions": positions, "block_size": 2}
    >>> print(render(Call("compute_slot_mapping", arguments)))
        block_size = 2
        request  tokens  block_table  positions
        0        0..2    5 9          1 2 3
        1        3..3    7 3          0
    """
    values, starts = flat_arguments(call), query_starts(call)
    columns: dict[str, list[str]] = {}
    if starts is not None and len(starts) > 1:
        rows = range(len(starts) - 1)
        columns["request"] = [str(i) for i in rows]
        columns["tokens"] = [
            f"{starts[i]}..{starts[i + 1] - 1}" if _count(starts, i) else "none" for i in rows
        ]
        for name in list(values):
            cells = _cells(name, values[name], starts)
            if cells is not None:
                columns[name] = cells
                del values[name]
        del values["query_start_loc"]
    lines = [f"{name} = {shorten(value)}" for name, value in values.items() if value is not None]
    lines += [f"hint {name} = {shorten(value)}" for name, value in call.hints.items()]
    return "\n".join(f"    {line}" for line in lines + _table(columns))


def _cells(name: str, value: object, starts: list[int]) -> list[str] | None:
    """Return what is in a column for each request, None where the value has no such column."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return None
    num_reqs = len(starts) - 1
    if name in PER_REQUEST and len(value) >= num_reqs:
        return [_words(value[i]) for i in range(num_reqs)]
    if name in PER_TOKEN and value.ndim == 1 and len(value) >= starts[-1]:
        cells = [_words(value[starts[i] : starts[i + 1]]) for i in range(num_reqs)]
        if len(value) > starts[-1]:
            cells[-1] += f" (then {_words(value[starts[-1] :])})"
        return cells
    return None


def _words(array: Any, maximum: int = 12) -> str:
    values = np.atleast_1d(array).tolist()
    shown = [str(v) for v in values[:maximum]]
    return " ".join(shown) + (f" ... ({len(values)})" if len(values) > maximum else "")


def _table(columns: dict[str, list[str]]) -> list[str]:
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))] if columns else []
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths.values(), strict=True)
        ).rstrip()
        for row in rows
    ]


def first_line(error: BaseException, default: str = "") -> str:
    r"""Return an exception as one line, with a default for an empty message.

    >>> first_line(ValueError("one\ntwo")), first_line(AssertionError(), "an int")
    ('ValueError: one', 'AssertionError: an int')
    """
    message = str(error).strip() or default
    return f"{type(error).__name__}: {message.partition(chr(10))[0]}"
