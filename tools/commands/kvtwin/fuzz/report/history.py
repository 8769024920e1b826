"""The history of nights: a folder with one small JSON file for each.

A night writes its own file, atomically, under a name that no other night has. So nights that run at
the same time, or share the folder between machines, do not disturb each other. A night is compared
with nights of the same targets, implementations and selected functions.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.reports.files import prepare_folder, write_files
from kvtwin.fuzz.report.record import Night, PastNight
from kvtwin.fuzz.report.seen import pack, unpack

FORMAT = "kvtwin night 1"
"""The format of a history file, stored in the file."""


@dataclasses.dataclass(frozen=True)
class History:
    """The earlier nights with which a night is compared.

    Attributes:
        nights: The nights of the same targets, implementations and functions, in order.
        seen: By kind of coverage, the digests of the events that the last night met; None if
            there is no night.
        notes: A line for each file that could not be read.
    """

    nights: Sequence[PastNight] = ()
    seen: Mapping[str, frozenset[int]] | None = None
    notes: Sequence[str] = ()


OLD_KINDS = {"situations": "goals", "pairs of situations": "pairs of goals"}
"""Kinds of coverage by their names in older files."""

NO_HISTORY = History()
"""The history of a night without `--history`."""


def read_history(folder: Path, night: Night) -> History:
    """Return the earlier nights that a night is compared with.

    Files without the suffix `.json` are left alone; another file that is not a night is reported in
    `notes` and otherwise ignored.

    Args:
        folder: The folder. One that does not exist is an empty history.
        night: The night, which need not be over.

    Raises:
        OSError: The folder cannot be read.
    """
    found: list[tuple[PastNight, dict[str, Any]]] = []
    notes = []
    for path in sorted(folder.glob("*.json")) if folder.exists() else []:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            past = _past_night(data)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{path} is not a night of kvtwin.fuzz, and is ignored: {reason}")
            continue
        if data["key"] == _key(night) and past.started < night.started:
            found.append((past, data["seen"]))
    found.sort(key=lambda one: one[0].started)
    seen = None
    if found:
        seen = {OLD_KINDS.get(kind, kind): unpack(text) for kind, text in found[-1][1].items()}
    return History(tuple(past for past, _ in found), seen, tuple(notes))


def append_night(folder: Path, night: Night, digests: Mapping[str, Iterable[int]]) -> Path:
    """Add a night to a history, and return its file.

    Args:
        folder: The folder, which is made if it is missing.
        night: The night, with its tables.
        digests: By kind of coverage, the digests of the events that it met, as `tally.digests_of`
            returns them.

    Raises:
        OSError: The folder cannot be written.
    """
    data = {
        "format": FORMAT,
        "key": _key(night),
        "night": past_night_of(night.to_json()),
        "seen": {kind: pack(numbers) for kind, numbers in digests.items()},
    }
    stamp = re.sub(r"[^0-9T]", "", night.started[:19])
    name = f"night-{stamp}-{uuid.uuid4().hex[:8]}.json"
    prepare_folder(folder)
    [path] = write_files({name: json.dumps(data, indent=1) + "\n"}, folder)
    return path


def past_night_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a night for the history: the fields of `PastNight`.

    Args:
        record: The night, as `Night.to_json` returns it.
    """
    statuses = [finding["status"] for finding in record["findings"]]
    commits = dict.fromkeys(one["commit"] for one in record["implementations"])
    return {
        **{name: record[name] for name in ("started", "seconds", "cases", "workers", "verdict")},
        **{status: statuses.count(status) for status in ("new", "known", "fixed")},
        "met": {coverage["kind"]: coverage["met"] for coverage in record["coverage"]},
        "commit": ", ".join(filter(None, commits)),
    }


def _key(night: Night) -> dict[str, Any]:
    """Return the JSON key that nights must share to be compared."""
    return {
        "targets": sorted(night.targets),
        "implementations": sorted(one.module for one in night.implementations),
        "selected": None if night.selected is None else sorted(night.selected),
    }


def _past_night(data: object) -> PastNight:
    """Return the night of a file.

    Raises:
        ValueError, KeyError, TypeError: It is not a night, or not of this format.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise ValueError(f"format is {str(found)[:40]!r}, expected {FORMAT!r}")
    past = PastNight(**data["night"])
    for name in ("seconds", "cases", "workers", "new", "known", "fixed"):
        number = getattr(past, name)
        if type(number) not in {int, float} or not 0 <= number < 1e15:
            raise ValueError(f"night.{name} is {number!r}, expected a number of at least 0")
    if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", str(past.started)):
        raise ValueError(f"night.started is {past.started!r}, expected an ISO 8601 time")
    if not isinstance(past.met, dict):
        raise TypeError(f"night.met is {past.met!r}, expected an object")
    for kind, number in past.met.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"night.met[{kind!r}] is {number!r}, expected a count")
    met = {OLD_KINDS.get(str(kind), str(kind)): number for kind, number in past.met.items()}
    for text in data["seen"].values():
        unpack(text)
    if not isinstance(data["key"], dict):
        raise TypeError(f"key is {data['key']!r}, expected an object")
    return dataclasses.replace(past, met=met)
