"""The morning report: `report.html`, `report.md` and `report.json` of a night of fuzzing.

All three say the same. `schema.json` defines the last; the first is one file that needs nothing
else, neither a network nor scripts. A night that is over is reported in three steps:

    history = read_history(folder, night)           # with --history, else NO_HISTORY
    night = with_tables(night, tallies, declared={"goals": names}, history=history)
    write_reports(night, out)
    append_night(folder, night, digests_of(tallies))
"""

from __future__ import annotations

import json
from pathlib import Path

from conformance.reports.files import write_files
from tools.fuzz.report.entries import (
    Bisection,
    Coverage,
    Error,
    Estimate,
    Finding,
    Implementation,
    LostWorker,
    Machine,
    PastNight,
    Point,
    Profile,
    PropertyRow,
    Row,
    Scope,
    WorkerMemory,
)
from tools.fuzz.report.history import NO_HISTORY, append_night, read_history
from tools.fuzz.report.html import html_of
from tools.fuzz.report.markdown import markdown_of
from tools.fuzz.report.record import Night
from tools.fuzz.report.tally import Tally, digests_of, with_tables

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of `report.json`."""

__all__ = [
    "NO_HISTORY",
    "SCHEMA",
    "Bisection",
    "Coverage",
    "Error",
    "Estimate",
    "Finding",
    "Implementation",
    "LostWorker",
    "Machine",
    "Night",
    "PastNight",
    "Point",
    "Profile",
    "PropertyRow",
    "Row",
    "Scope",
    "Tally",
    "WorkerMemory",
    "append_night",
    "digests_of",
    "read_history",
    "with_tables",
    "write_reports",
]


def write_reports(night: Night, folder: Path) -> list[Path]:
    """Write a night in three forms, in place of the reports of an earlier one.

    Args:
        night: The night, with its tables. It need not be over: a later call replaces the files.
        folder: The folder, which is made if it is missing.

    Returns:
        The files.

    Raises:
        OSError: They cannot be written.
    """
    record = night.to_json()
    texts = {
        "report.json": json.dumps(record, indent=1, ensure_ascii=False) + "\n",
        "report.md": markdown_of(record),
        "report.html": html_of(record),
    }
    return write_files(texts, folder)
