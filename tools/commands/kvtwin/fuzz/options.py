"""The options of a night."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvtwin.fuzz.cases.properties import Subject


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a night.

    Attributes:
        subject: The implementations, targets and functions to fuzz.
        seconds: The length of the night.
        out: The folder for findings and reports.
        seed: The seed of the draws; None: a new one each night.
        command: The command line, for the report.
        database_url: The example database; None for a folder in `out`.
    """

    subject: Subject
    seconds: float
    out: Path
    seed: int | None = None
    command: Sequence[str] = ()
    database_url: str | None = None
