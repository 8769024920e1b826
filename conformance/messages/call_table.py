"""A call as text: a table with a row for each request, and other arguments above it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final

import numpy as np

import reference
from conformance.arrays.guard_bands import is_poisoned
from conformance.messages.formatting import INDENT, WIDTH, chosen, elements, shortened, value_lines
from conformance.messages.places import (
    PER_REQUEST,
    PER_TOKEN,
    count_tokens,
    flat_arguments,
    locate,
    query_starts,
)
from conformance.values.call import Call
from conformance.values.differences import Difference

NUM_ROWS: Final = 12
"""Requests that the table of a call shows at most."""

MAX_LINES: Final = 48
"""Lines of a call, at most; of a longer one, the middle is left out."""


def render(call: Call, difference: Difference | None = None) -> str:
    """Return a call as text: a table with a row for each request, other arguments above it.

    Long arrays and tables are shown around the difference.

    >>> starts, positions = np.array([0, 3, 4], np.int32), np.array([1, 2, 3, 0])
    >>> table = np.array([[5, 9], [7, 3]], np.int32)
    >>> arguments = {"block_table": table, "query_start_loc": starts}
    >>> arguments |= {"positions": positions, "block_size": 2}
    >>> print(render(Call("compute_slot_mapping", arguments)))
        block_size = 2
        defaults: cp_world_size = 1, cp_rank = 0, cp_kv_cache_interleave_size = 1
        request  tokens  block_table  positions
        0        0..2    5 9          1 2 3
        1        3..3    7 3          0
    """
    starts = query_starts(call)
    values = dict(call.arguments) if starts is None else _without_defaults(call)
    table: list[str] = []
    if starts is not None and len(starts) > 1:
        focus = _Focus.of(call, difference)
        for maximum in (12, 8, 6, 4):
            columns = _columns(values, starts, focus, maximum)
            table = _table(columns)
            if max(map(len, table)) <= WIDTH - len(INDENT):
                break
        values = {name: value for name, value in values.items() if name not in columns}
        del values["query_start_loc"]
    matters = _places_in(difference)
    width = WIDTH - len(INDENT)
    lines = []
    for name, value in (*values.items(), *((f"hint {n}", v) for n, v in call.hints.items())):
        if value is not None or name in call.arguments:
            lines += value_lines(f"{name} = ", value, width=width, matters=matters)
    defaults = ", ".join(f"{name} = {value}" for name, value in _defaults(call))
    if call.arguments and defaults:
        lines += textwrap.wrap(f"defaults: {defaults}", width)
    lines = shortened([*lines, *table], MAX_LINES)
    return "\n".join(f"{INDENT}{line}" for line in lines)


def _defaults(call: Call) -> Iterator[tuple[str, object]]:
    """Yield the parameters that a call leaves out, and their defaults if these are numbers."""
    function = definition_of(call)
    if not isinstance(function, FunctionType):
        return
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in call.arguments and type(parameter.default) is int:
            yield name, parameter.default


def definition_of(call: Call) -> Any:
    """Return the function of `reference`, or None if there is none."""
    function: Any = reference
    for name in call.function.split("."):
        function = getattr(function, name, None)
    return function


def _without_defaults(call: Call) -> dict[str, Any]:
    """Return the arguments, with objects replaced by their fields that are not defaults."""
    defaults = {
        field.name: field.default
        for value in call.arguments.values()
        if dataclasses.is_dataclass(value)
        for field in dataclasses.fields(value)
    }
    return {
        name: value
        for name, value in flat_arguments(call).items()
        if name in call.arguments or value is not defaults.get(name)
    }


def _places_in(difference: Difference | None) -> frozenset[object]:
    """Return the indices and keys that a difference names."""
    line = "" if difference is None else difference.line
    indices = re.findall(r"\[(\d+)[,\]]", line)
    return frozenset((*map(int, indices), *re.findall(r"'([^']+)'", line)))


@dataclasses.dataclass(frozen=True)
class _Focus:
    """The request, and the parts of its row, that a table shows if not everything fits.

    Attributes:
        request: The request; None for the first ones.
        token: The index of the token in the request.
        column: The column of the block table.
    """

    request: int | None = None
    token: int | None = None
    column: int | None = None

    @staticmethod
    def of(call: Call, difference: Difference | None) -> _Focus:
        """Return the request, the token and the block that a difference is about."""
        where = "" if difference is None else locate(call, difference)
        if difference is not None and difference.path == "num_decodes":
            numbers = difference.got, difference.expected
            return _Focus(min((n for n in numbers if isinstance(n, int)), default=None))
        found = re.match(r"request (\d+)(?:, token (\d+) |, column (\d+))?", where)
        if found is None:
            return _Focus()
        request, token, column = (None if part is None else int(part) for part in found.groups())
        position = _position(call, request, token)
        if position is not None:
            size = int(call.get("block_size", 1)) * int(call.get("cp_world_size", 1))
            column = position // max(size, 1)
        return _Focus(request, token, column)


def _position(call: Call, request: int | None, token: int | None) -> int | None:
    starts, positions = query_starts(call), flat_arguments(call).get("positions")
    if starts is None or request is None or token is None or positions is None:
        return None
    return int(positions[starts[request] + token])


def _columns(
    values: dict[str, Any], starts: list[int], focus: _Focus, maximum: int
) -> dict[str, list[str]]:
    """Return the columns of a table of requests, with at most `maximum` elements in a cell."""
    rows = chosen(len(starts) - 1, NUM_ROWS, focus.request)
    columns = {"request": [_cell(i, str) for i in rows]}
    columns["tokens"] = [
        _cell(
            i, lambda i: f"{starts[i]}..{starts[i + 1] - 1}" if count_tokens(starts, i) else "none"
        )
        for i in rows
    ]
    for name, value in values.items():
        of_request = _cells(name, value, starts, focus, maximum)
        if of_request is not None:
            columns[name] = [_cell(i, of_request) for i in rows]
    return columns


def _cell(request: int | None, of_request: Callable[[int], str]) -> str:
    return "..." if request is None else of_request(request)


def _cells(
    name: str, value: object, starts: list[int], focus: _Focus, maximum: int
) -> Callable[[int], str] | None:
    """Return a function from a request to its cell; None if a value is not a column."""
    if not isinstance(value, np.ndarray) or not value.ndim:
        return None
    num_reqs = len(starts) - 1

    def words(array: Any, i: int, center: int | None) -> str:
        found = np.atleast_1d(array).tolist()
        is_center = i == focus.request and center is not None and center < len(found)
        return elements(found, maximum, center if is_center else None)

    if name in PER_REQUEST and len(value) >= num_reqs:
        return lambda i: words(value[i], i, focus.column)
    if (
        name in PER_TOKEN
        and value.ndim == 1
        and len(value) >= starts[-1]
        and not is_poisoned(value)
    ):

        def of_tokens(i: int) -> str:
            text = words(value[starts[i] : starts[i + 1]], i, focus.token)
            is_last = i == num_reqs - 1 and len(value) > starts[-1]
            return f"{text} (then {words(value[starts[-1] :], -1, None)})" if is_last else text

        return of_tokens
    return None


def _table(columns: dict[str, list[str]]) -> list[str]:
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))] if columns else []
    return [
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths.values(), strict=True)
        ).rstrip()
        for row in rows
    ]
