"""The failures of nights, and `history.jsonl`, which has a line for each night.

A failure is a JSON object. `key` is what failures have in common that count as one, `fails` whether
it fails the night, `tests` what to run again, `case` the file of its stored case in the night's
folder (empty if there is none), and `since` the first night that saw it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

MAX_BYTES: Final = 64 << 20
WORDS: Final = ("key", "function", "difference", "finding", "replay", "case", "since")
LISTS: Final = ("targets", "tests")


def place_of(difference: str) -> str:
    """Return the place of a difference, which is the same for other inputs.

    >>> place_of("result[1].slots[3, 0] = 4, but should be 5")
    'result.slots'
    >>> place_of("the call raised ValueError: longest is 9, but should return a result")
    'the call raised ValueError'
    """
    plain = re.sub(r"\[[^\]]*\]|\d+(\.\d+)?", "", difference)
    return " ".join(re.split(r" = |: |, | \(", plain, maxsplit=1)[0].split())[:100]


def read_history(path: Path) -> tuple[str | None, list[Json], list[str]]:
    """Return the text, the lines that can be read, and a warning about each other one.

    The text is None if the file cannot be read, and must not be replaced.
    """
    try:
        if path.exists() and path.stat().st_size > MAX_BYTES:
            return None, [], [f"{path} is left out: it is too large"]
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
    except OSError as error:
        return None, [], [f"{path} is left out: {error.strerror}"]
    nights, warnings = [], []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            nights += [_checked(json.loads(line))] if line else []
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            warnings.append(f"{path}, line {number}, is left out: it is not the line of a night")
    return text, nights, warnings


def _checked(line: Json) -> Json:
    """Return a line; raise an exception if something else wrote it."""
    failures = (*line["failures"], *line["fixed"])
    words = [line["night"], *(one[name] for one in failures for name in WORDS)]
    words += [word for one in failures for name in LISTS for word in one[name]]
    numbers = [line[name] for name in ("seconds", "rounds", "examples")]
    numbers += [one["fails"] for one in failures]
    if not all(isinstance(word, str) for word in words) or not all(
        isinstance(number, int) for number in numbers
    ):
        raise TypeError("a value of another type")
    return line


def failures_in(nights: Sequence[Json]) -> tuple[dict[str, Json], dict[str, str]]:
    """Return the failures that no night has reported as fixed, and the first night of each."""
    found: dict[str, Json] = {}
    since: dict[str, str] = {}
    for line in nights:
        for failure in line["failures"]:
            found[failure["key"]] = failure
            since.setdefault(failure["key"], line["night"])
        for failure in line["fixed"]:
            found.pop(failure["key"], None)
    return found, since
