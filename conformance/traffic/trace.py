"""Traces of real requests: reading them, and generating the small default trace.

A trace is a CSV file with the columns ``TIMESTAMP`` (date and time of day), ``ContextTokens``
and ``GeneratedTokens``, one row for each request: the format of the Azure LLM inference traces.
"""

import csv
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DEFAULT_TRACE = Path(__file__).with_name("default_trace.csv")
FIRST_TIMESTAMP = datetime.fromisoformat("2000-01-01 00:00:00")
"""The start of the generated trace; only differences are read."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        arrival_seconds: When it arrives, in seconds after the first of the trace.
        context_tokens: Tokens of its prompt, at least one.
        generated_tokens: Tokens generated for it, at least one.
    """

    arrival_seconds: float
    context_tokens: int
    generated_tokens: int

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole sequence when it ends."""
        return self.context_tokens + self.generated_tokens


def read_trace(path: str | Path, limit: int | None = None) -> list[TraceRequest]:
    """Read the requests of a CSV file, by arrival; equal arrivals keep their order.

    Args:
        path: The file.
        limit: The number of rows to read; None for all.

    Raises:
        KeyError: The header lacks a column.
        ValueError: A row lacks a value or has an invalid one, or there are no rows. The message
            has the file, the line and the column.

    Example:
        >>> read_trace(DEFAULT_TRACE, limit=1)
        [TraceRequest(arrival_seconds=0.0, context_tokens=21, generated_tokens=46)]
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = _read_rows(path, file, limit)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no requests, only a header")
    first = min(timestamp for timestamp, _, _ in rows)
    rows.sort(key=lambda row: row[0])
    return [
        TraceRequest((timestamp - first).total_seconds(), context, generated)
        for timestamp, context, generated in rows
    ]


def _read_rows(path: Path, file: TextIO, limit: int | None) -> list[tuple[datetime, int, int]]:
    """Read arrival, prompt and output of each row."""
    reader = csv.DictReader(file, strict=True)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise KeyError(
            f"{path}, line 1: no column {', '.join(missing)} among {list(reader.fieldnames or ())}"
        )
    rows: list[tuple[datetime, int, int]] = []
    for row in reader:
        if limit is not None and len(rows) == limit:
            break
        where = f"{path}, line {reader.line_num}"
        if None in row:  # where csv puts the values past the last column
            num_columns = len(row) - 1
            raise ValueError(
                f"{where}: {num_columns + len(row[None])} values, but the header has "
                f"{num_columns} columns"
            )
        timestamp = _read_timestamp(f"{where}, column TIMESTAMP", row["TIMESTAMP"])
        if rows and (timestamp.tzinfo is None) != (rows[0][0].tzinfo is None):
            raise ValueError(
                f"{where}, column TIMESTAMP: {row['TIMESTAMP']!r} and the first row's cannot be "
                f"compared, since only one of them has a time zone"
            )
        context, generated = (
            _read_count(f"{where}, column {column}", row[column]) for column in COLUMNS[1:]
        )
        rows.append((timestamp, context, generated))
    return rows


def _read_timestamp(where: str, text: str | None) -> datetime:
    """Read a date and time of day."""
    try:
        return datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise ValueError(
            f"{where}: must be a date and time such as '2023-11-16 18:17:03.979', got {text!r}"
        ) from None


def _read_count(where: str, text: str | None) -> int:
    """Read a number of tokens."""
    digits = (text or "").strip()
    if not (digits.isascii() and digits.isdecimal() and int(digits) >= 1):
        raise ValueError(f"{where}: must be an integer >= 1, got {text!r}")
    return int(digits)


def make_trace(num_requests: int = 200, *, seed: int = 13) -> list[TraceRequest]:
    """Generate a trace with heavy-tailed lengths, most of them short, and arrivals in bursts.

    Only integers are drawn, so that the trace is the same on every machine. A length is drawn in
    two steps: its octave (shorter ones more often), then its value in the octave. A few prompts are
    longer than the chunk of 8192 tokens that Llama 4 attends to locally. The default seed, that of
    the default trace, has a long prompt early.

    Example:
        >>> make_trace(2)[0] == make_trace(1)[0] == read_trace(DEFAULT_TRACE)[0]
        True
    """
    draw = random.Random(seed)  # noqa: S311  # a made trace is not a secret
    requests: list[TraceRequest] = []
    now_us = 0
    for _ in range(num_requests):
        context = _draw_length(draw, octaves=(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), longest=6000)
        if draw.randrange(64) == 0:
            context = draw.randrange(8192, 9000)
        generated = _draw_length(draw, octaves=(0, 1, 2, 3, 4, 5, 6, 7, 8), longest=400)
        requests.append(TraceRequest(now_us / 1_000_000, context, generated))
        in_burst = draw.randrange(8) > 0
        now_us += draw.randrange(2_000, 60_000) if in_burst else draw.randrange(200_000, 2_000_000)
    return requests


def _draw_length(draw: random.Random, *, octaves: tuple[int, ...], longest: int) -> int:
    """Draw a length: its octave, then its value in the octave."""
    weights = [3 if octave < 9 else 2 for octave in octaves]
    octave = draw.choices(octaves, weights)[0]
    return min(draw.randrange(2**octave, 2 ** (octave + 1)), longest)


def format_trace(requests: list[TraceRequest]) -> str:
    """Return requests as the text of a trace file.

    Example:
        >>> print(format_trace([TraceRequest(0.25, 7, 3)]), end="")
        TIMESTAMP,ContextTokens,GeneratedTokens
        2000-01-01 00:00:00.250000,7,3
    """
    lines = [",".join(COLUMNS)]
    for request in requests:
        arrival = FIRST_TIMESTAMP + timedelta(microseconds=round(request.arrival_seconds * 1e6))
        lines.append(
            f"{arrival.isoformat(sep=' ', timespec='microseconds')},"
            f"{request.context_tokens},{request.generated_tokens}"
        )
    return "\n".join(lines) + "\n"
