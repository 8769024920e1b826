"""Failures as text: one screen with the difference, the call, and how to see it again."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from conformance.harness.compare import as_numpy
from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict
from conformance.harness.values import Array, fields_of, get, is_object, text_of
from reference import CommonAttentionMetadata

WIDTH: Final = 100
MAX_LINES: Final = 40
MAX_REQUESTS: Final = 10
INDENT: Final = "    "

PER_REQUEST: Final = re.compile(r"block_table.*|\w*seq_lens(_cpu)?|num_computed_tokens_cpu")
PER_TOKEN: Final = re.compile(r"positions|slot_mapping")
PROMISED: Final = ("holds", "kept")

Place: TypeAlias = tuple[str, int, int]
"""Where in the batch a difference lies: in words, the request, the token of it or column."""


def failure_text(failure: Failure, replay: str, host: frozenset[str] = frozenset()) -> str:
    """Return a failure as one screen.

    Args:
        failure: The failure, with its shrunk story.
        replay: The command that shows it again.
        host: The contract's `host`: arguments and fields whose arrays are NumPy's.
    """
    story, difference = failure.story, failure.difference
    place = _place(story, difference)
    is_wrong = difference.verdict is Verdict.WRONG_ANSWER
    verdict = "" if is_wrong else f" ({difference.verdict.value})"
    head = [f"{story.function} on {failure.target}: {difference.kind}{verdict}"]
    for line in _statement(story, difference, 300, place[0]):
        head += _wrapped(line)
    head += [INDENT + line for line in _window(difference)]
    tail = _wrapped(f"needed: {failure.condition}", "") if failure.condition else []
    how = ", ".join(_circumstances(story.circumstances))
    tail += _wrapped(f"circumstances: {how}", "") if how else []
    tail += ["To reproduce:", *_command(replay), *_pasted(failure, replay, host)]
    call = [INDENT + line for line in _call(story, place)]
    head += ["called with" if call else "called without arguments"]
    most = MAX_LINES - len(head) - len(tail)
    if len(call) > most:
        left_out = f"{INDENT}... {len(call) - most + 1} more lines ..."
        call = [*call[: most // 2], left_out, *call[len(call) - (most - most // 2 - 1) :]]
    return "\n".join(map(_printable, [*head, *call, *tail]))


def one_line(failure: Failure) -> str:
    """Return what follows `FAILS: `, such as `f on host: result[1] = 2, but should be 0`."""
    difference, condition = failure.difference, failure.condition
    lines = _statement(failure.story, difference, 120)
    lines[:0] = [difference.kind] if _is_promise(difference) else []
    needed = f" ({condition})" if condition else ""
    return _printable(f"{failure.story.function} on {failure.target}: {', '.join(lines)}{needed}")


def causes(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Group failures that have the same cause (function, kind and field), the worst first.

    A wrong value for an ordinary call is worse than a crash, and that than what needs a condition.
    """

    def cause(failure: Failure) -> tuple[str, ...]:
        field = re.sub(r"\[[^]]*\]", "", failure.difference.where)
        return failure.story.function, failure.difference.kind, field

    def goodness(failure: Failure) -> tuple[int, int]:
        is_crash = isinstance(failure.difference.got, BaseException)
        rank = 2 if failure.condition else int(is_crash)
        return [*Verdict].index(failure.difference.verdict), rank

    groups = itertools.groupby(sorted(failures, key=cause), cause)
    found = [sorted(group, key=goodness) for _, group in groups]
    return sorted(found, key=lambda group: goodness(group[0]))


def _printable(line: str) -> str:
    """Return a line with control characters escaped, which would move a terminal's cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _wrapped(line: str, indent: str = INDENT) -> list[str]:
    more = indent + INDENT
    return textwrap.wrap(line, WIDTH, initial_indent=indent, subsequent_indent=more, max_lines=4)


# The difference.


def _is_promise(difference: Difference) -> bool:
    return isinstance(difference.expected, str) and difference.expected in PROMISED


def _place(story: Story, difference: Difference) -> Place:
    values, starts = _batch(story)
    name, index = difference.where.rpartition(".")[2], difference.index
    if not index or "[" in difference.where:
        return "", 0, 0  # a part of a list, such as a micro-batch, has its own requests
    is_whole = name in {"result", "out"}
    if PER_TOKEN.fullmatch(name) or (is_whole and "positions" in values):
        if not starts or index[0] >= starts[-1]:
            return f"token {index[0]}" + ", which is padding" * bool(starts), 0, 0
        request = int(np.searchsorted(starts, index[0], side="right")) - 1
        token = index[0] - starts[request]
        return f"token {token} of request {request}", request, token
    lens = values.get("seq_lens")
    num_reqs = len(starts) - 1 if starts else len(lens) if np.ndim(lens) else 0
    if (PER_REQUEST.fullmatch(name) or is_whole) and len(difference.expected) == num_reqs:
        column = f"column {index[1]} of " if len(index) > 1 else ""
        return f"{column}request {index[0]}", index[0], index[-1] if column else 0
    return "", 0, 0


def _statement(story: Story, difference: Difference, most: int, place: str = "") -> list[str]:
    """Return the difference without its surroundings, in one or more lines."""
    where, index = difference.where, difference.index
    got, expected = difference.got, difference.expected
    lines = _changed(story)
    if _is_promise(difference):
        return [*lines, where, _short(got, most)]
    if isinstance(got, BaseException) or isinstance(expected, BaseException):
        did = "raised" if isinstance(got, BaseException) else "returned"
        raises = isinstance(expected, BaseException)
        should = "but reference raises" if raises else "but should return"
        return [*lines, f"{where} {did} {_short(got, most)}", f"{should} {_short(expected, most)}"]
    notes = [place] if place else []
    if index is not None:
        before = story.arguments.get(where)
        got, expected = _array(got)[index], _array(expected)[index]
        if isinstance(before, np.ndarray) and before.ndim == len(index) and before[index] == got:
            notes += ["as before the call"]
        if str(got) == str(expected):
            notes += [f"bits {x.tobytes()[::-1].hex()}" for x in (got, expected)]
    elif difference.kind in {"wrong shape", "wrong dtype"}:
        name = difference.kind.removeprefix("wrong ")
        where = f"{where}.{name}"
        got, expected = (str(getattr(x, name, x)).removeprefix("torch.") for x in (got, expected))
        got, expected = (x.replace("torch.Size([", "(").replace("])", ")") for x in (got, expected))
    elif difference.kind == "wrong type":
        where = where if isinstance(expected, str) else f"type({where})"
        got, expected = (x if isinstance(x, str) else type(x).__name__ for x in (got, expected))
    is_words = difference.kind != "wrong value"
    mine, theirs = (
        x if isinstance(x, str) and is_words else _short(x, most) for x in (got, expected)
    )
    place = f"[{', '.join(map(str, index))}]" if index else ""
    note = f"  ({', '.join(notes)})" if notes else ""
    return [*lines, f"{where}{place} = {mine}, but should be {theirs}{note}"]


def _changed(story: Story) -> list[str]:
    if story.changed is None:
        return []
    if not story.changed:
        return ["a valid call with several places changed"]
    try:
        now = f"= {_short(get(story.arguments, story.changed), 60)}"
    except (AttributeError, LookupError):
        now = "removed"
    return [f"a valid call with one place changed: {text_of(story.changed)} {now}"]


def _window(difference: Difference) -> Iterator[str]:
    """Yield how many elements differ, and both arrays around the first one."""
    index = difference.index
    if not index or np.size(difference.expected) < 2:
        return
    both = [_array(difference.got), _array(difference.expected)]
    bits = [np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8) for array in both]
    count = int((bits[0] != bits[1]).any(axis=1).sum())
    first = max(0, min(index[-1] - 5, both[1].shape[-1] - 12))
    at = ", ".join([*map(str, index[:-1]), f"{first}:{min(first + 12, both[1].shape[-1])}"])
    verb = "differs" if count == 1 else "differ"
    yield f"{count} of {both[1].size} elements {verb}; {difference.where}[{at}]:"
    rows = [[str(x) for x in array[index[:-1]][first : first + 12]] for array in both]
    yield from _aligned([["got", *rows[0]], ["expected", *rows[1]]])


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [map(str.ljust, row, widths) for row in rows]
    return ["  ".join(row).rstrip()[: WIDTH - len(INDENT)] for row in cells]


# The call.


def _batch(story: Story) -> tuple[dict[str, Any], list[int]]:
    """Return the arguments, with metadata's fields among them, and the query starts if valid."""
    values: dict[str, Any] = {}
    for name, value in story.arguments.items():
        is_metadata = isinstance(value, CommonAttentionMetadata)
        values |= fields_of(value) if is_metadata else {name: value}
    for name in [name for name in values if name.endswith("_cpu")]:
        twin = values.get(name.removesuffix("_cpu"))
        if isinstance(twin, np.ndarray) and np.array_equal(twin, values[name]):
            del values[name]
    starts = values.get("query_start_loc")
    is_vector = isinstance(starts, np.ndarray) and starts.ndim == 1 and starts.dtype.kind in "iu"
    found = starts.tolist() if isinstance(starts, np.ndarray) and is_vector else []
    return values, found if len(found) > 1 and [0, *found] == sorted([0, *found]) else []


def _call(story: Story, place: Place) -> list[str]:
    """Return the arguments: a line for each, and a table with a row for each request."""
    values, starts = _batch(story)
    table: list[str] = []
    if starts:
        for most in (12, 8, 6, 4, 3):
            columns = _columns(values, starts, place, most)
            table = _aligned([*map(list, zip(*columns.values(), strict=True))])
            if max(map(len, table)) < WIDTH - len(INDENT):
                break
        values = {n: v for n, v in values.items() if n not in {*columns, "query_start_loc"}}
    lines = [
        f"{name} = {_short(value, WIDTH - len(INDENT) - len(name) - 3, place[1])}"
        for name, value in values.items()
        if value is not None or name in story.arguments
    ]
    return [*lines, *table]


def _columns(
    values: dict[str, Any], starts: list[int], place: Place, most: int
) -> dict[str, list[str]]:
    """Return the columns of the table, each with its title."""
    num_reqs, end = len(starts) - 1, starts[-1]
    rows = _shown(num_reqs, MAX_REQUESTS, place[1])
    per_token = {
        name: value
        for name, value in values.items()
        if PER_TOKEN.fullmatch(name) and np.ndim(value) == 1 and len(value) >= end
    }
    total = max([end, *map(len, per_token.values())])
    ends = [*starts[1:], total]
    rows += [num_reqs] if total > end else []

    def column(title: str, cell: Callable[[int], object]) -> list[str]:
        return [title, *("..." if row is None else str(cell(row)) for row in rows)]

    def tokens(row: int) -> str:
        return f"{starts[row]}..{ends[row] - 1}" if ends[row] > starts[row] else "none"

    def elements(row: int, part: Array) -> str:
        return _elements(part, most, place[2] if row == place[1] else 0, " ")

    found = {
        "request": column("request", lambda row: row if row < num_reqs else "padding"),
        "query": column("query", lambda row: ends[row] - starts[row]),
        "tokens": column("tokens", tokens),
    }
    for name, value in values.items():
        is_array = isinstance(value, np.ndarray) and value.ndim in {1, 2}
        if name in per_token and is_array:
            found[name] = column(name, lambda i, v=value: elements(i, v[starts[i] : ends[i]]))
        elif PER_REQUEST.fullmatch(name) and is_array and len(value) >= num_reqs:
            found[name] = column(
                name, lambda i, v=value: elements(i, np.ravel(v[i])) if i < num_reqs else ""
            )
    return found


def _circumstances(how: Circumstances) -> Iterator[str]:
    for name, value in vars(how).items():
        if value != getattr(Circumstances, name):
            words = re.sub("^(is|has)_", "", name).replace("_", " ")
            text = " ".join(value) if isinstance(value, tuple) else str(value)
            yield words if value is True else f"{words} {text}"


# Values.


def _array(value: Any) -> Array:
    return as_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _shown(length: int, most: int, center: int = 0) -> list[int | None]:
    """Return the indices of a long sequence that are shown, around one; None is a gap."""
    first = max(0, min(center - most // 2, length - most))
    inside = range(first, min(first + most, length))
    return [*[None] * (first > 0), *inside, *[None] * (first + most < length)]


def _elements(array: Array, most: int, center: int = 0, joint: str = ", ") -> str:
    rest = f" (of {len(array)})" if len(array) > most else ""
    shown = _shown(len(array), most, center)
    return joint.join("..." if i is None else _array_text(array[i]) for i in shown) + rest


def _array_text(value: Any, name: str = "", center: int = 0) -> str:
    """Return an array, shortened, or one of its elements."""
    if np.ndim(value) == 0:
        return str(value)
    text = f"[{_elements(value, 16 if value.ndim == 1 else 4, center)}]"
    return f"{text} ({value.dtype})" if name else text


def _short(value: Any, most: int, center: int = 0) -> str:
    """Return any value on one line; of a long one, the middle is left out."""
    text = _text(value, lambda array, _: f"{_array_text(array, '', center)} {array.dtype}")
    last = most // 3
    return text if len(text) <= most else f"{text[: most - last - 5]} ... {text[-last:]}"


def _text(
    value: Any, of_array: Callable[[Array, str], str], prefix: str = "", name: str = ""
) -> str:
    """Return a value as Python; what Python has no text for as words.

    Args:
        value: The value.
        of_array: Returns the text of an array in a field of a name.
        prefix: The module of `reference`'s classes, with a dot.
        name: The field that the value is of.
    """

    def inside(part: Any, name: str = name) -> str:
        return _text(part, of_array, prefix, name)

    if isinstance(value, np.ndarray | torch.Tensor):
        return of_array(_array(value), name)
    if isinstance(value, np.dtype | torch.dtype):
        return f"torch.{value}".replace("torch.torch", "torch")
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list | tuple | set | frozenset):
        marks = {list: "[]", tuple: "()"}.get(type(value), "{}")
        comma = "," * (type(value) is tuple and len(value) == 1)
        return f"{marks[0]}{', '.join(map(inside, value))}{comma}{marks[1]}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {inside(part)}' for key, part in value.items())}}}"
    if is_object(value):
        prefix = prefix if type(value).__module__.startswith("reference") else ""
        parts = [
            f"{field}={inside(part, field)}"
            for field, part in fields_of(value).items()
            if part is not getattr(type(value), field, inside)  # a dataclass' default
        ]
        return f"{prefix}{type(value).__name__}({', '.join(parts)})"
    known = None | int | float | complex | str | bytes | slice | range | np.generic
    return repr(value) if isinstance(value, known) else f"a {type(value).__name__}"


# How to see it again.


def _command(replay: str, joint: str = " \\") -> list[str]:
    """Return a long command on several lines, joined for a shell or, with parentheses, Python."""
    width = WIDTH - 2 * len(INDENT) - len(joint)
    lines = textwrap.wrap(replay, width, break_long_words=False, break_on_hyphens=False)
    found = [line + joint for line in lines[:-1]] + lines[-1:]
    return [INDENT * (2 if i else 1) + line for i, line in enumerate(found)]


def _pasted(failure: Failure, replay: str, host: frozenset[str]) -> list[str]:
    """Return the call as an expression, if it is short and shows the failure by itself."""
    story, arguments = failure.story, dict(failure.story.arguments)
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray)]
    is_shared = any(np.may_share_memory(a, b) for a, b in itertools.combinations(arrays, 2))
    if failure.condition or any(_circumstances(story.circumstances)) or is_shared:
        return []
    impl = re.search(r"--impl[ =](\S+)", replay)
    prefix = f"{Path(impl[1]).stem if impl else 'fast'}."

    def of_array(array: Array, name: str) -> str:
        values = array.tolist() if array.size < 100 else "too long"
        if name in host:
            return f"np.array({values}, np.{array.dtype})"
        return f"torch.tensor({values}, dtype=torch.{array.dtype})"

    if "self" in arguments:
        prefix = f"{_text(arguments.pop('self'), of_array, prefix)}."
    parts = (f"{name}={_text(value, of_array, prefix, name)}" for name, value in arguments.items())
    lines = _command(f"{prefix}{story.function.rpartition('.')[2]}({', '.join(parts)})", "")
    try:
        compile("".join(lines).strip(), "", "eval")
    except SyntaxError:
        return []
    return lines if len(lines) <= 3 else []
