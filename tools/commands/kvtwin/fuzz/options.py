"""The options of a night."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kvtwin.fuzz.properties import Subject


@dataclasses.dataclass(frozen=True)
class Options:
    """What a night does.

    Attributes:
        subject: What is fuzzed.
        seconds: How long.
        out: Where findings and reports go.
        seed: What the draws come from; None: another one each night.
        command: The command line, for the report.
        database_url: The example database; None for a folder in `out`.
    """

    subject: Subject
    seconds: float
    out: Path
    seed: int | None = None
    command: Sequence[str] = ()
    database_url: str | None = None
