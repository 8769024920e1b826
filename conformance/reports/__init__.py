"""Reports of a run: `--report DIR` writes `report.json`, `report.md` and `report.html`.

All three have the same contents. `schema.json` defines the first; the last is one self-contained
file, without network access or scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.reports.files import prepare_folder, write_files
from conformance.reports.pages import html_of, markdown_of
from conformance.reports.record import SCHEMA_VERSION, with_old_keys

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of `report.json`."""

__all__ = ["SCHEMA", "SCHEMA_VERSION", "prepare_folder", "write_reports"]


def write_reports(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the reports of a run.

    Args:
        record: The record of the run, from `record.record_of`.
        folder: The folder to write to.

    Returns:
        The files, in place of those of an earlier run.
    """
    texts = {
        "report.json": json.dumps(with_old_keys(record), indent=1, ensure_ascii=False) + "\n",
        "report.md": markdown_of(record),
        "report.html": html_of(record),
    }
    return write_files(texts, folder)
