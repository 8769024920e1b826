"""The morning report: `report.html`, `report.md` and `report.json` of a night of fuzzing.

All three have the same contents. `schema.json` defines the last; the first is one self-contained
file, without network access, that can be read without scripts. A finished night is reported in
three steps:

    history = read_history(folder, night)           # with --history, else NO_HISTORY
    night = with_tables(night, tallies, declared={"goals": names}, history=history)
    write_reports(night, out)
    append_night(folder, night, digests_of(tallies))
"""

from __future__ import annotations

import json
from pathlib import Path

from conformance.reports.files import write_files
from kvtwin.fuzz.report.pages import html_of, markdown_of
from kvtwin.fuzz.report.record import Night

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of `report.json`."""


def write_reports(night: Night, folder: Path) -> list[Path]:
    """Write a night in three forms, in place of the reports of an earlier one.

    Args:
        night: The night, with its tables.
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
