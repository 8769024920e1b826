"""Formats values for reports: without default fields, long arrays only around one element.

A list of objects shows the first one in full, and the others by their differences from it.
"""

from __future__ import annotations

import dataclasses
import enum
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch

from conformance.arrays.guard_bands import POISON_BYTE, is_poisoned
from conformance.targets.factories import Factory
from conformance.values.parts import children, has_entries

WIDTH: Final = 100
"""Columns of a terminal."""

INDENT: Final = "    "

MAX_VALUE: Final = 160
"""Characters of a value that differs; a longer one is shown from the difference on."""

NUM_ELEMENTS: Final = 40
"""The most elements of an array, or entries of a list, that are shown."""


def chosen(length: int, maximum: int, center: int | None = None) -> list[int | None]:
    """Return the indices of a sequence to show, with None for each gap.

    Args:
        length: The length of the sequence.
        maximum: The maximum number of indices.
        center: The index that matters; None to show the first ones.

    >>> chosen(9, 5), chosen(9, 5, 6), chosen(5, 5, 0)
    ([0, 1, 2, 3, None, 8], [0, None, 5, 6, 7, 8], [0, 1, 2, 3, 4])
    """
    if length <= maximum:
        return list(range(length))
    first = 0 if center is None else center - (maximum - 2) // 2
    first = max(0, min(first, length - maximum + 1))
    places = sorted({0, *range(first, min(first + maximum - 1, length)), length - 1})
    found: list[int | None] = list(places[:1])
    for before, place in pairwise(places):
        found += [place] if place == before + 1 else [None, place]
    return found


def elements(
    values: Sequence[object], maximum: int, center: int | None = None, joint: str = " "
) -> str:
    """Return a sequence of numbers as text, a long one around the element that matters.

    >>> elements(range(1000), 6, 500)
    '0 ... 498 499 500 501 502 ... 999 (1000)'
    """
    places = chosen(len(values), maximum, center)
    text = joint.join("..." if i is None else str(values[i]) for i in places)
    return text if len(values) <= maximum else f"{text} ({len(values)})"


def array_text(array: Any, index: tuple[int, ...] = ()) -> str:
    """Return an array as nested lists, a long one around the element at an index.

    >>> array_text(np.arange(6).reshape(2, 3)), array_text(np.zeros((0, 2), np.int8))
    ('[[0, 1, 2], [3, 4, 5]]', 'an array of shape (0, 2), int8')
    >>> array_text(np.arange(1000), (500,))[:30]
    '[0, ..., 481, 482, 483, 484, 4'
    """
    array = np.asarray(array)
    if is_poisoned(array):
        return f"uninitialized memory of shape {array.shape}, filled with 0x{POISON_BYTE:X}"
    if array.size == 0 and array.ndim != 1:
        return f"an array of shape {array.shape}, {array.dtype}"
    if array.ndim == 0:
        return str(array.item())
    shown = chosen(len(array), NUM_ELEMENTS if array.ndim == 1 else 6, *index[:1])
    inside = (
        "..." if i is None else array_text(array[i], index[1:] if (i,) == index[:1] else ())
        for i in shown
    )
    text = f"[{', '.join(inside)}]"
    return text if None not in shown else f"{text} ({len(array)})"


def value_text(value: Any) -> str:
    """Return a value on one line; an object without the fields that have their defaults.

    >>> import reference
    >>> value_text([reference.CacheConfig(block_size=4), slice(0, 2), np.dtype("int8"), ""])
    "[CacheConfig(block_size=4), slice(0, 2, None), int8, '']"
    """
    if isinstance(value, np.ndarray | torch.Tensor):
        return array_text(value.tolist() if isinstance(value, torch.Tensor) else value)
    if isinstance(value, np.dtype | torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, type | enum.Enum):
        return value.__name__ if isinstance(value, type) else str(value)
    parts = _parts(value)
    return repr(value) if parts is None else _joined(parts)


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The parts of a collection or an object with their labels, and its brackets."""

    opened: str
    named: list[tuple[str, Any]]
    closed: str


def _parts(value: Any) -> _Parts | None:
    """Return the parts of a list, a tuple, a dict or a dataclass; None for any other value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Factory):
        parameters: Any = getattr(type(value), "__dataclass_params__", None)
        if parameters.repr:
            return _Parts(f"{type(value).__name__}(", [*_fields(value)], ")")
    if not has_entries(value) or not isinstance(value, list | tuple | dict):
        return None
    if isinstance(value, dict):
        return _Parts("{", [(f"{key!r}: ", entry) for key, entry in value.items()], "}")
    opened, closed = ("[", "]") if isinstance(value, list) else ("(", ")")
    return _Parts(opened, [("", entry) for entry in value], closed)


def _fields(value: Any) -> Iterable[tuple[str, Any]]:
    """Yield the fields of a dataclass that are not the defaults."""
    for field in dataclasses.fields(value):
        found, default = getattr(value, field.name, None), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.repr and not _is_same(found, default):
            yield f"{field.name}=", found


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _joined(parts: _Parts) -> str:
    inside = ", ".join(f"{name}{value_text(part)}" for name, part in parts.named)
    comma = "," if parts.opened == "(" and len(parts.named) == 1 else ""
    return f"{parts.opened}{inside}{comma}{parts.closed}"


def value_lines(
    name: str, value: Any, *, width: int = WIDTH, matters: frozenset[Any] = frozenset()
) -> list[str]:
    r"""Return a value after its name, on as many lines as it needs.

    Args:
        name: The text before it: "specs = ".
        value: The value.
        width: The columns that a line may have.
        matters: Indices and keys of entries that must be shown in long lists and dicts.

    >>> import reference
    >>> spec = reference.FullAttentionSpec(16, 2, 64, np.dtype("float16"))
    >>> other = reference.FullAttentionSpec(16, 2, 64, np.dtype("int8"))
    >>> print(*value_lines("specs = ", [spec, spec, other]), sep="\n")
    specs = [
        [0] FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=float16)
        [1] as [0]
        [2] as [0], but dtype=int8
    ]
    """
    kind = f"  ({value.dtype})" if isinstance(value, np.ndarray) and value.size else ""
    line, parts = f"{name}{value_text(value)}{kind}", _parts(value)
    if len(line) <= width:
        return [line]
    if parts is None or not parts.named or (isinstance(value, list | tuple) and _is_flat(value)):
        if parts is not None:
            line = f"{name}{parts.opened}{_numbers(value, matters)}{parts.closed}"
        return textwrap.wrap(line, width, subsequent_indent="    ", break_on_hyphens=False)
    lines = [f"{name}{parts.opened}"]
    first: tuple[str, Any] | None = None
    keys = list(children(value)) if has_entries(value) else [key for key, _ in parts.named]
    for place in _shown_places(keys, matters):
        if place is None:
            lines.append(f"    ... ({len(keys)} in all)")
            continue
        label, part = parts.named[place]
        label = label or f"[{place}] "
        if first is not None and type(part) is type(first[1]) and (label != part):
            shorter = min(_unlike(first, part), value_text(part), key=len)
            lines.append(f"    {label}{shorter}"[: 2 * width])
            continue
        has_fields = dataclasses.is_dataclass(part) and _parts(part) is not None
        if has_entries(value) and has_fields and first is None:
            first = (f"[{keys[place]!r}]", part)
        lines += [
            f"    {line}" for line in value_lines(label, part, width=width - 4, matters=matters)
        ]
    return [*lines, parts.closed]


def _is_flat(value: Sequence[Any]) -> bool:
    return all(isinstance(entry, int | float | bool | None) for entry in value)


def _numbers(value: Sequence[Any], matters: frozenset[Any]) -> str:
    center = next((key for key in matters if isinstance(key, int) and key < len(value)), None)
    return elements(value, NUM_ELEMENTS, center, ", ")


def _shown_places(keys: Sequence[Any], matters: frozenset[Any], maximum: int = 12) -> list[Any]:
    """Return the places to show in a list or dict, the first and those that matter; None: a gap."""
    wanted = {place for place, key in enumerate(keys) if key in matters}
    wanted |= set(range(min(len(keys), maximum - min(len(wanted), maximum // 2))))
    places = sorted(wanted)
    found: list[Any] = []
    for place in places:
        if found and place != found[-1] + 1:
            found.append(None)
        found.append(place)
    return found if not places or places[-1] == len(keys) - 1 else [*found, None]


def _unlike(first: tuple[str, Any], other: Any) -> str:
    """Return an object as its differences from the first one of its class."""
    name, whole = first
    fields = [field.name for field in dataclasses.fields(whole)]
    different = [
        f"{field}={value_text(getattr(other, field))}"
        for field in fields
        if not _is_same(getattr(whole, field), getattr(other, field))
    ]
    return f"as {name}" + (f", but {', '.join(different)}" if different else "")


def around_difference(got: str, expected: str, maximum: int = MAX_VALUE) -> tuple[str, str]:
    """Return two long texts without their common prefix, so that the difference is visible.

    >>> around_difference("a" * 99 + "b", "a" * 99 + "c", 60)[0]
    '...aaaaaaaaaaaaaaaaaaaab'
    """
    if max(len(got), len(expected)) <= maximum:
        return got, expected
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
        min(len(got), len(expected)),
    )
    start = max(same - 20, 0) if same > maximum // 3 else 0
    cut = [text[start:] for text in (got, expected)]
    cut = [text if len(text) <= maximum else f"{text[:maximum]}..." for text in cut]
    return ("..." + cut[0], "..." + cut[1]) if start else (cut[0], cut[1])


def shortened(lines: list[str], maximum: int, num_last: int = 16) -> list[str]:
    """Return lines without those in the middle, if they are too many.

    >>> shortened(list("abcdef"), 4, 1)
    ['a', 'b', '... 3 more lines ...', 'f']
    """
    if len(lines) <= maximum:
        return lines
    num_first = maximum - num_last - 1
    left_out = f"... {len(lines) - num_first - num_last} more lines ..."
    return [*lines[:num_first], left_out, *lines[len(lines) - num_last :]]


def printable(value: Any) -> Any:
    r"""Return a text, or the texts in lists, tuples and dicts, with control characters escaped.

    An implementation's text must not move the cursor of a terminal or change its settings.

    >>> printable("\x1b[2Jone\n\ttwo\r"), printable([("\x07", 1)])
    ('\\x1b[2Jone\n\ttwo\\r', [('\\x07', 1)])
    """
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {key: printable(entry) for key, entry in value.items()}
    return type(value)(map(printable, value)) if isinstance(value, list | tuple) else value


def first_line(error: BaseException, default: str = "") -> str:
    r"""Return an exception as one line, with a default for an empty message.

    >>> first_line(ValueError("one\ntwo")), first_line(AssertionError(), "an int")
    ('ValueError: one', 'AssertionError: an int')
    """
    message = str(error).strip() or default
    return f"{type(error).__name__}: {message.partition(chr(10))[0]}"
