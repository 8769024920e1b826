"""Failures as text: one screen with the difference, the call, and how to see it again."""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from conformance.harness.compare import as_numpy
from conformance.harness.objects import Device, Operation
from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict
from conformance.harness.values import Array, Drawn, fields_of, get, is_object, objects, text_of
from reference import CommonAttentionMetadata

WIDTH: Final = 100
MAX_LINES: Final = 40
INDENT: Final = "    "

PER_REQUEST: Final = re.compile(
    r"block_table.*|\w*seq_lens(_cpu)?(_upper_bound)?|num_computed_tokens_cpu|is_prefilling|req_idx"
)
PER_TOKEN: Final = re.compile(r"positions|slot_mapping")
TITLES: Final = {"num_computed_tokens_cpu": "computed", "block_table_tensor": "block_table"}
PROMISES: Final = (
    "violates the law",
    "breaks a promise",
)  # kinds, of which `got` says what is wrong

FACTS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "wrong shape": ("{}.shape", lambda array: str((*array.shape,))),
    "wrong dtype": ("{}.dtype", lambda array: array.dtype),
    "wrong length": ("len({})", len),
    "wrong type": ("type({})", lambda value: type(value).__name__),
}
"""What is shown of two values that differ in more than an element, by the kind of difference."""

ArrayText: TypeAlias = Callable[[Array, str], str]  # of an array in a field of this name
Table: TypeAlias = list[list[str]]
Place: TypeAlias = tuple[str, int, int]  # in words; the request, and its token or column


def failure_text(failure: Failure, replay: str, host: frozenset[str] = frozenset()) -> str:
    difference = failure.difference
    story = dataclasses.replace(failure.story, arguments=failure.arguments)
    place = _place(story, difference)
    head = [f"{story.function} on {failure.target}: {difference.kind}"]
    if difference.verdict is not Verdict.WRONG_ANSWER:
        head[0] += f" ({difference.verdict.value})"
    for line in _statement(story, difference, 300, place[0]):
        head += [INDENT + x for x in textwrap.wrap(line, 96, subsequent_indent=INDENT, max_lines=4)]
    head += [INDENT + line for line in _window(difference)]
    operations, wrong = _operations(story, difference)
    if wrong:
        head.append(INDENT + wrong)
    notes = {"needed": failure.condition, "circumstances": _circumstances(story.circumstances)}
    tail = [f"{name}: {note}"[:WIDTH] for name, note in notes.items() if note]
    tail += ["To reproduce:", *_command(replay), *_pasted(failure, replay, host)]
    call = [INDENT + line for line in [*_call(story, place), *operations]]
    head += ["called with" if call else "called without arguments"]
    most = MAX_LINES - len(head) - len(tail)
    if len(call) > most:
        call[most // 2 : len(call) - (most - 1) // 2] = [
            f"{INDENT}... {len(call)} lines in all ..."
        ]
    return "\n".join([*head, *call, *tail])


def one_line(failure: Failure) -> str:
    lines = _statement(failure.story, failure.difference, 120)
    lines[:0] = [failure.difference.kind] * failure.difference.kind.startswith(PROMISES)
    lines[-1] += f" ({failure.condition})" if failure.condition else ""
    return f"{failure.story.function} on {failure.target}: {', '.join(lines)}"


def _place(story: Story, difference: Difference) -> Place:
    values, starts = batch_of(story.arguments)
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
    num_reqs = len(starts) - 1 if starts else np.size(values.get("seq_lens", ()))
    if (PER_REQUEST.fullmatch(name) or is_whole) and len(difference.expected) == num_reqs:
        column = f"column {index[1]} of " if len(index) > 1 else ""
        return f"{column}request {index[0]}", index[0], index[-1] if column else 0
    return "", 0, 0


def _statement(story: Story, difference: Difference, most: int, place: str = "") -> list[str]:
    where, index = difference.where, difference.index
    got, expected = difference.got, difference.expected
    lines = _changed(story)
    if difference.kind.startswith(PROMISES):
        return [*lines, where, _short(got, most)]
    raised, raises = (isinstance(value, BaseException) for value in (got, expected))
    if raised or raises:
        did = f"{where} {'raised' if raised else 'returned'} {_short(got, most // 2)}"
        should = "reference raises" if raises else "should return"
        if isinstance(expected, Drawn):  # what all operations of a session returned
            return [*lines, did, "but should raise nothing"]
        return [*lines, did, f"but {should} {_short(expected, most)}"]
    if where == "the call" and isinstance(got, str):
        return [*lines, f"{where} {difference.kind}"]
    notes = [place] if place else []
    if index is not None:
        before = story.arguments.get(where)
        got, expected = _array(got)[index], _array(expected)[index]
        if isinstance(before, np.ndarray) and before.ndim == len(index) and before[index] == got:
            notes += ["as before the call"]
        if str(got) == str(expected):
            notes += [f"bits {x.tobytes()[::-1].hex()}" for x in (got, expected)]
    elif difference.kind in FACTS and not isinstance(expected, str):
        words, fact = FACTS[difference.kind]
        where, got, expected = words.format(where), fact(got), fact(expected)
    mine, theirs = (_short(value, most) for value in (got, expected))
    place = f"[{', '.join(map(str, index))}]" if index else ""
    note = f"  ({', '.join(notes)})" if notes else ""
    return [*lines, f"{where}{place} = {mine}, but should be {theirs}{note}"]


def _changed(story: Story) -> list[str]:
    if not story.changed:
        return [] if story.changed is None else ["a valid call with several places changed"]
    try:
        now = f"= {_short(get(story.arguments, story.changed), 60, is_quoted=True)}"
    except (AttributeError, LookupError, TypeError):
        now = "removed"
    return [f"a valid call with one place changed: {text_of(story.changed)} {now}"]


def _window(difference: Difference) -> Iterator[str]:
    """Yield how many elements differ, and both arrays around the first one."""
    index = difference.index
    both = [_array(difference.got), _array(difference.expected)] if index else []
    if not index or both[1].size < 2 or len({(a.shape, a.dtype) for a in both}) > 1:
        return
    bits = [np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8) for array in both]
    count = int((bits[0] != bits[1]).any(axis=1).sum())
    first = max(0, min(index[-1] - 5, both[1].shape[-1] - 12))
    at = ", ".join([*map(str, index[:-1]), f"{first}:{min(first + 12, both[1].shape[-1])}"])
    yield f"{count} of {both[1].size} elements differ; {difference.where}[{at}]:"
    rows = [[str(x) for x in array[index[:-1]][first : first + 12]] for array in both]
    yield from _aligned([["got", *rows[0]], ["expected", *rows[1]]])


def _aligned(rows: Table) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip()[: WIDTH - 4] for row in rows]


def batch_of(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return the arguments, with metadata's fields among them, and the query starts if valid."""
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        values |= fields_of(value) if isinstance(value, CommonAttentionMetadata) else {name: value}
    for name in [*values]:
        twin = values.get(f"{name}_cpu")
        if isinstance(twin, np.ndarray) and np.array_equal(twin, values[name]):
            del values[f"{name}_cpu"]
    starts = values.get("query_start_loc")
    if not isinstance(starts, np.ndarray) or starts.ndim != 1 or starts.dtype.kind not in "iu":
        return values, []
    found = [0, *starts.tolist()]
    return values, found[1:] if len(found) > 2 and found == sorted(found) else []


def _call(story: Story, place: Place) -> list[str]:
    values, starts = batch_of(story.arguments)
    if "operations" in values and _is_session(story):
        del values["operations"]
    table: list[str] = []
    if starts:
        columns = [name for name, value in values.items() if _is_column(name, value, starts)]
        for most in (12, 8, 6, 4, 3):
            table = _aligned(_rows({name: values[name] for name in columns}, starts, place, most))
            if max(map(len, table)) < WIDTH - len(INDENT):
                break
        values = {n: v for n, v in values.items() if n not in {*columns, "query_start_loc"}}
    lines, scalars = list[str](), list[str]()
    for name, value in values.items():
        if not isinstance(value, Device) and (value is not None or name in story.arguments):
            text = _short(value, WIDTH - len(name) - 7, place[1], is_quoted=True)
            (scalars if isinstance(value, int | None) else lines).append(f"{name} = {text}")
    return [*lines, *textwrap.wrap(", ".join(scalars), WIDTH - len(INDENT)), *table]


def _is_session(story: Story) -> bool:
    found = story.arguments.get("operations")
    return isinstance(found, list) and all(isinstance(one, Operation) for one in found)


MOST_OPERATIONS: Final = 20


def _operations(story: Story, difference: Difference) -> tuple[list[str], str]:
    """Return a line for each operation to the wrong one, and which that is, in words."""
    if not _is_session(story):
        return [], ""
    done: list[Operation] = story.arguments["operations"]
    found = re.search(r"\[(\d+)\]\.(state|returned)", difference.where)
    last = int(found[1]) if found else len(done) - 1
    lines = []
    for k, one in enumerate(done[: last + 1]):
        given = ", ".join(f"{n}={_short(v, 60, is_quoted=True)}" for n, v in one.arguments.items())
        where = f" of object {one.on}" * (one.on != 0)
        method = {"": "(nothing)", "=": "write into results"}.get(one.method, one.method)
        lines.append(_short(f"{k}{where}: {method}({given})", WIDTH - len(INDENT)))
    words = ""
    if found:
        is_state = found[2] == "state"
        words = f"The state is correct before operation {last} and wrong after it"
        words = f"{words if is_state else f'Operation {last} is the first to go wrong'}:"
        words = _short(f"{words} {lines[-1].partition(': ')[2]}", WIDTH - len(INDENT))
    held = re.search(r"result\.results\[(\d+)\]", difference.where)
    if held:
        words = (
            f"The result of operation {held[1]} was right, but is wrong after the last operation"
        )
    if len(lines) > MOST_OPERATIONS:
        first = MOST_OPERATIONS // 3
        left = len(lines) - MOST_OPERATIONS + 1
        lines[first : first + left] = [f"... {left} more operations ..."]
    return lines, words


def _is_column(name: str, value: Any, starts: list[int]) -> bool:
    if not isinstance(value, np.ndarray) or value.ndim not in {1, 2}:
        return False
    if PER_TOKEN.fullmatch(name):
        return value.ndim == 1 and len(value) >= starts[-1]
    return PER_REQUEST.fullmatch(name) is not None and len(value) >= len(starts) - 1


def _rows(columns: dict[str, Array], starts: list[int], place: Place, most: int) -> Table:
    num_reqs, end = len(starts) - 1, starts[-1]
    bounds = [*starts, max([end, *(len(columns[n]) for n in columns if PER_TOKEN.fullmatch(n))])]
    table = [["request", "query", "tokens", *(TITLES.get(name, name) for name in columns)]]
    for row in [*_shown(num_reqs, 10, place[1]), *[num_reqs] * (bounds[-1] > end)]:
        if row is None:
            table.append(["..."] * len(table[0]))
            continue
        first, last = bounds[row : row + 2]
        tokens = f"{first}..{last - 1}" if last > first else "none"
        table.append([str(row) if row < num_reqs else "padding", str(last - first), tokens])
        for name, array in columns.items():
            of_request = np.ravel(array[row : min(row + 1, num_reqs)])
            part = array[first:last] if PER_TOKEN.fullmatch(name) else of_request
            table[-1].append(_elements(part, most, place[2] * (row == place[1]), " "))
    return table


def _circumstances(how: Circumstances) -> str:
    other = {n: value for n, value in vars(how).items() if value != getattr(Circumstances, n)}
    text = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in other.items())
    return re.sub(r"\b(is|has) |: True|[(',)]", "", text)


def _array(value: Any) -> Array:
    return as_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _shown(length: int, most: int, center: int = 0) -> list[int | None]:
    """Return the indices of a long sequence that are shown, around one; None is a gap."""
    first = max(0, min(center - most // 2, length - most))
    last = min(first + most, length)
    return [*[None] * (first > 0), *range(first, last), *[None] * (last < length)]


def _elements(array: Array, most: int, center: int = 0, joint: str = ", ") -> str:
    """Return the elements as text, only those around one if they are too many."""
    texts = (
        "..." if i is None else str(array[i]) if array.ndim == 1 else f"[{_elements(array[i], 16)}]"
        for i in _shown(len(array), most, center)
    )
    return joint.join(texts) + (f" (of {len(array)})" if len(array) > most else "")


def _short(value: Any, most: int, center: int = 0, *, is_quoted: bool = False) -> str:
    def of_array(array: Array, _: str) -> str:
        most = 16 if array.ndim == 1 else 4
        text = f"[{_elements(array, most, center)}]" if array.ndim else str(array)
        return f"{text} {array.dtype}" if array.size else f"{array.dtype} of shape {array.shape}"

    is_plain = isinstance(value, str | np.generic) and not is_quoted
    text = str(value) if is_plain else _text(value, of_array)
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    last = most // 3
    return text if len(text) <= most else f"{text[: most - last - 5]} ... {text[-last:]}"


def _text(value: Any, of_array: ArrayText, prefix: str = "", name: str = "") -> str:
    """Return a value as Python, `prefix` before `reference`'s classes, or what it is in words."""

    def inside(part: Any, name: str = name) -> str:
        return _text(part, of_array, prefix, name)

    if isinstance(value, np.ndarray | torch.Tensor):
        text = of_array(_array(value), name)
    elif isinstance(value, np.dtype | torch.dtype):
        text = ("torch." if prefix else "") + str(value).removeprefix("torch.")
    elif isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}"
    elif isinstance(value, list | tuple):
        inner = ", ".join(map(inside, value)) + "," * (type(value) is tuple and len(value) == 1)
        text = f"[{inner}]" if isinstance(value, list) else f"({inner})"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{key!r}: {inside(part)}' for key, part in value.items())}}}"
    elif is_object(value):
        known = vars(type(value))  # with the defaults of a dataclass
        fields = {n: v for n, v in fields_of(value).items() if v is not known.get(n, known)}
        inner = ", ".join(f"{field}={inside(part, field)}" for field, part in fields.items())
        prefix = prefix if type(value).__module__.startswith("reference") else ""
        text = f"{prefix}{type(value).__name__}({inner})"
    elif isinstance(value, type):
        text = value.__name__
    else:
        plain = None | int | float | complex | str | bytes | slice | range | np.generic
        text = repr(value) if isinstance(value, plain) else f"a {type(value).__name__}"
    return re.sub(r"(slice\(\w+, \w+), None\)", r"\1)", text)


def _command(line: str, joint: str = " \\") -> list[str]:
    width = WIDTH - 2 * len(INDENT) - len(joint)
    lines = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    found = [part + joint for part in lines[:-1]] + lines[-1:]
    return [INDENT * (2 if i else 1) + part for i, part in enumerate(found)]


def _pasted(failure: Failure, replay: str, host: frozenset[str]) -> list[str]:
    """Return the call as an expression, if it is short and shows the failure by itself."""
    story, arguments = failure.story, dict(failure.arguments)
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray)]
    is_shared = any(np.may_share_memory(a, b) for a, b in itertools.combinations(arrays, 2))
    impl = re.search(r"--impl[ =](?:\S*/)?([\w.]+?)(?:\.py)?(?:\s|$)", replay)
    is_drawn = any(isinstance(value, Drawn) for value in objects(arguments))
    is_other = failure.condition or _circumstances(story.circumstances) or is_shared or is_drawn
    if is_other or (story.changed is not None and not impl):  # `fast` needs checked mode then
        return []
    prefix = f"{impl[1] if impl else 'fast'}."

    def of_array(array: Array, name: str) -> str:
        is_short = array.dtype.kind in "biu" and 0 < array.size < 100
        values = array.tolist() if is_short or array.shape == (0,) else "too long"
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
    return lines if len(lines) <= 3 and max(map(len, lines)) <= WIDTH else []
