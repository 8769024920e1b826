"""The failures of nights, and `history.jsonl`, which has a line for each night."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]
Key = tuple[str, str, str]

MAX_BYTES: Final = 64 << 20


@dataclasses.dataclass
class Failure:
    """A failure of a function, the same in all nights."""

    function: str  # or a test that has none
    implementation: str
    place: str  # the first difference without its values; see `place_of`
    difference: str
    finding: str
    fails: bool  # whether it fails the night, as wrong answers do
    replay: str  # the command that shows it again
    case: str  # the file of the stored case, relative to the night's folder; empty if there is none
    since: str
    targets: list[str] = dataclasses.field(default_factory=list)
    tests: list[str] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> Key:
        """What failures have in common that count as one."""
        return self.implementation, self.function, self.place


def place_of(difference: str) -> str:
    """Return the place of a difference, which is the same for other inputs.

    >>> place_of("result[1].slots[3, 0] = 4, but should be 5")
    'result.slots'
    >>> place_of("the call raised ValueError: longest is 9, but should return a result")
    'the call raised ValueError'
    """
    plain = re.sub(r"\[[^\]]*\]|\d+(\.\d+)?", "", difference)
    return " ".join(re.split(r" = |: |, | \(", plain, maxsplit=1)[0].split())[:100]


def read_history(path: Path) -> tuple[str | None, list[Line], list[str]]:
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


def _checked(line: Line) -> Line:
    """Return a line; raise an exception if something else wrote it."""
    kinds: dict[str, type] = {"night": str, "seconds": int, "rounds": int, "examples": int}
    of_failure = Failure("", "", "", "", "", False, "", "", "")
    checked = [(line, kinds)]
    for entry in (*line["failures"], *line["fixed"]):
        checked.append((entry, {name: type(value) for name, value in vars(of_failure).items()}))
        "".join((*entry["targets"], *entry["tests"]))
    if any(
        type(entry[name]) is not kind for entry, kinds in checked for name, kind in kinds.items()
    ):
        raise TypeError("a value of another type")
    return line


def failures_in(nights: Sequence[Line]) -> tuple[dict[Key, Failure], dict[Key, str]]:
    """Return the failures that no night has reported as fixed, and the first night of each."""
    found: dict[Key, Failure] = {}
    since: dict[Key, str] = {}
    for line in nights:
        for failure in (Failure(**entry) for entry in line["failures"]):
            found[failure.key] = failure
            since.setdefault(failure.key, line["night"])
        for entry in line["fixed"]:
            found.pop(Failure(**entry).key, None)
    return found, since
