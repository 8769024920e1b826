"""Failures as text: one screen with the difference, the call, and how to see it again."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
import torch

from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict
from reference import CommonAttentionMetadata

WIDTH: Final = 100
MAX_LINES: Final = 40
MAX_REQUESTS: Final = 10
MAX_ELEMENTS: Final = 24
INDENT: Final = "    "

PER_REQUEST: Final = """seq_lens seq_lens_cpu num_computed_tokens_cpu block_table
    block_table_tensor dcp_local_seq_lens encoder_seq_lens""".split()
PER_TOKEN: Final = ("positions", "slot_mapping")

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def failure_text(failure: Failure, replay: str, host: frozenset[str] = frozenset()) -> str:
    """Return a failure as one screen.

    Args:
        failure: The failure, with its shrunk story.
        replay: The command that shows it again.
        host: The contract's `host`: arguments and fields whose arrays are NumPy's.
    """
    story, difference = failure.story, failure.difference
    verdict = f" ({difference.verdict.value})" if difference.verdict != Verdict.WRONG_ANSWER else ""
    title = f"{story.function} on {failure.target}: {difference.kind}{verdict}"
    head = [title, *_difference_lines(failure)]
    tail = [f"needed: {failure.condition}"] if failure.condition else []
    how = ", ".join(_circumstances(story.circumstances))
    tail += [f"circumstances: {how}"] if how else []
    again = [*_command(replay), *_pasted(failure, replay, host)]
    tail += ["To reproduce:", *(INDENT + line for line in again)] if again else []
    call = [INDENT + line for line in _call(story, _request_of(story, difference))]
    room = MAX_LINES - len(head) - len(tail) - 1
    lines = [*head, "called with" + ":" * bool(call), *_without_middle(call, room), *tail]
    return "\n".join(map(_printable, lines))


def one_line(failure: Failure) -> str:
    """Return what follows `FAILS: `, such as `f on host: result[1] = 2, but should be 0`."""
    line = "; ".join(_statement(failure, 60))
    needed = f" ({failure.condition})" if failure.condition else ""
    return _printable(f"{failure.story.function} on {failure.target}: {line}{needed}")


def causes(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Return groups of failures that have the same cause: function, kind and field; worst first.

    A wrong value for an ordinary call is worse than a crash, and that than what needs a condition.
    """

    def cause(failure: Failure) -> tuple[str, str, str]:
        field = re.sub(r"\[[^]]*\]", "", failure.difference.where)
        return failure.story.function, failure.difference.kind, field

    def badness(failure: Failure) -> tuple[int, int]:
        is_crash = isinstance(failure.difference.got, BaseException)
        needs = bool(failure.condition or failure.story.condition)
        return [*Verdict].index(failure.difference.verdict), 2 * needs + (is_crash and not needs)

    groups = [
        sorted(group, key=badness) for _, group in groupby(sorted(failures, key=cause), key=cause)
    ]
    return sorted(groups, key=lambda group: badness(group[0]))


def _printable(line: str) -> str:
    """Return a line with control characters escaped: they must not move a terminal's cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


def _wrapped(line: str, most: int = 3) -> list[str]:
    found = textwrap.wrap(
        line, WIDTH, initial_indent=INDENT, subsequent_indent=2 * INDENT, break_on_hyphens=False
    )
    return [*found[: most - 1], f"{found[most - 1][: WIDTH - 4]} ..."] if len(found) > most else found


def _without_middle(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    last = most // 3
    left_out = f"{INDENT}... {len(lines) - most + 1} more lines ..."
    return [*lines[: most - last - 1], left_out, *lines[len(lines) - last :]]


# Values


def _array(value: object) -> Array | None:
    """Return an array or a tensor as an array; None for any other value."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        name = str(tensor.dtype).removeprefix("torch.")
        if hasattr(ml_dtypes, name):
            bits = tensor.view(torch.int16 if tensor.itemsize == 2 else torch.uint8).numpy()
            return bits.view(getattr(ml_dtypes, name))
        return tensor.numpy()
    return value if isinstance(value, np.ndarray) else None


def _places(length: int, most: int, center: int = 0) -> list[int | None]:
    """Return the indices of a long sequence to show, around one; None is a gap."""
    if length <= most:
        return [*range(length)]
    first = max(0, min(center - (most - 2) // 2, length - most + 1))
    middle = range(first, min(first + most - 1, length))
    ends = [0, None] if first > 1 else [0][: first]
    rest = [None, length - 1] if middle[-1] < length - 2 else [*range(middle[-1] + 1, length)]
    return [*ends, *middle, *rest]


def _elements(values: Sequence[object], most: int, center: int = 0, joint: str = " ") -> str:
    shown = _places(len(values), most, center)
    return joint.join("..." if place is None else str(values[place]) for place in shown)


def _array_text(array: Array, index: tuple[int, ...] = (), most: int = MAX_ELEMENTS) -> str:
    if array.ndim == 0:
        return _scalar_text(array[()])
    if array.size == 0 and array.ndim > 1:
        return f"an empty array of shape {array.shape}"
    shown = _places(len(array), most if array.ndim == 1 else 4, *index[:1])
    here = {index[0]: index[1:]} if index else {}
    parts = [
        "..." if i is None else _array_text(array[i], here.get(i, ()), max(most // 2, 6))
        for i in shown
    ]
    return f"[{', '.join(parts)}]"


def _scalar_text(value: Any) -> str:
    return str(value.item()) if value.dtype.kind in "biufc" else str(value)


def _text(value: Any, most: int = WIDTH) -> str:
    """Return any value on one line."""
    array = _array(value)
    if array is not None:
        lines = f", {len(array)} elements" if array.ndim == 1 and len(array) > MAX_ELEMENTS else ""
        text = f"{_array_text(array)}  ({array.dtype}{lines})"
    elif isinstance(value, np.dtype | torch.dtype | torch.device):
        text = str(value).removeprefix("torch.")
    elif isinstance(value, np.generic):
        text = f"np.{value.dtype}({_scalar_text(value)})"
    elif isinstance(value, type):
        text = value.__name__
    elif isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}"
    elif isinstance(value, slice):
        text = f"slice({value.start}, {value.stop}" + f", {value.step})" * (value.step is not None)
        text += ")" * (value.step is None)
    elif isinstance(value, list | tuple | set | frozenset | dict):
        text = _joined(value)
    elif isinstance(value, int | float | str | bytes | None | range):
        text = repr(value)
    elif dataclasses.is_dataclass(value) or type(value).__name__ == "SimpleNamespace":
        fields = (f"{name}={_text(part, most)}" for name, part in vars(value).items())
        text = f"{type(value).__name__}({', '.join(fields)})"
    else:
        text = f"a {type(value).__name__} object"
    return text if len(text) <= most else f"{text[: most * 2 // 3 - 3]} ... {text[-(most // 3 - 2) :]}"
