"""Batches of a trace of real requests, as a continuous-batching scheduler forms them.

A trace is a CSV file with the columns ``TIMESTAMP`` (date and time of day), ``ContextTokens``
and ``GeneratedTokens``, one row for each request: the format of the Azure LLM inference traces.

Time is simulated. A step takes `SECONDS_PER_STEP` and `SECONDS_PER_TOKEN` for each of its tokens,
about what an 8B model takes on one A100, so requests arrive while others run, queue up in a burst,
and thin out after it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

from conformance.engine.request import Request
from conformance.engine.scheduler import (
    EngineSettings,
    Scheduler,
    SchedulerOutput,
    longest_request,
    serve,
)

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DEFAULT_TRACE = Path(__file__).with_name("default_trace.csv")
"""A generated trace: short and long prompts, one longer than a chunk of 8192, in bursts."""
SECONDS_PER_STEP = 0.03
SECONDS_PER_TOKEN = 0.0001
SETTINGS = EngineSettings(
    block_sizes=(16,),
    num_blocks=1281,  # few: some long prompts fill them, so that requests are preempted
    reuses_latest_block=True,
    long_prefill_token_threshold=655,  # 4% of the longest sequence, as in vLLM
)

_IN_USE: Final = [DEFAULT_TRACE]


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace."""

    arrival_seconds: float  # after the first of the trace
    context_tokens: int  # of its prompt, at least one
    generated_tokens: int  # at least one


@dataclass(frozen=True)
class TraceBatch:
    """The lengths of one step's requests, in batch order: decodes, then extends, then prefills."""

    query_lens: tuple[int, ...]  # new tokens of each request
    num_computed_tokens: tuple[int, ...]  # tokens of each in the cache before the step


def use_trace(path: Path | None) -> None:
    """Cut the batches of this process from another trace; None: from the project's own.

    Raises:
        ValueError: The file cannot be read, is no trace, or has no request that can be served.
    """
    _IN_USE[:] = [path or DEFAULT_TRACE]
    traffic.cache_clear()
    if path is not None:
        try:
            traffic()
        except OSError as error:
            raise ValueError(f"--trace {path}: {error.strerror}") from error
        except ValueError as error:  # which begins with the name of the file
            raise ValueError(f"--trace {error}") from error


@cache
def traffic() -> list[TraceBatch]:
    """Return the batches of the trace in use; a failing one shrinks towards the first."""
    found = set(trace_steps(_IN_USE[0]))
    return sorted(found, key=lambda b: (sum(b.query_lens), b.query_lens, b.num_computed_tokens))


def trace_steps(path: Path = DEFAULT_TRACE, limit: int = 200) -> Sequence[TraceBatch]:
    """Serve a trace, and return the batches of its steps, at most `limit`.

    Requests that are too long for the engine are left out.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no trace, or has no request that the engine can serve.

    Example:
        >>> first = trace_steps(limit=3)[0]
        >>> first.query_lens, first.num_computed_tokens
        ((21,), (0,))
    """
    longest = longest_request(SETTINGS)
    requests = [
        request
        for request in read_trace(path)
        if request.context_tokens + request.generated_tokens <= longest
    ]
    if not requests:
        raise ValueError(f"{path} has no request of at most {longest} tokens")
    return [_make_batch(step) for step in islice(serve_trace(requests, SETTINGS), limit)]


def read_trace(path: Path) -> list[TraceRequest]:
    """Read the requests of a CSV file, by arrival; equal arrivals keep their order.

    Raises:
        OSError: The file cannot be read.
        ValueError: It lacks a column, has no requests, or an invalid value. The message has the
            file, the line and the column.

    Example:
        >>> read_trace(DEFAULT_TRACE)[0]
        TraceRequest(arrival_seconds=0.0, context_tokens=21, generated_tokens=46)
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"{path}, line 1: no column {', '.join(missing)}")
            rows = [_read_row(f"{path}, line {reader.line_num}", row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no requests, only a header")
    if len({timestamp.tzinfo is None for timestamp, _, _ in rows}) > 1:
        raise ValueError(f"{path}: only some values of TIMESTAMP have a time zone")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return [
        TraceRequest((timestamp - first).total_seconds(), context, generated)
        for timestamp, context, generated in rows
    ]


def _read_row(where: str, row: dict[str, Any]) -> tuple[datetime, int, int]:
    values = {name: (row[name] or "").strip() for name in COLUMNS}
    try:
        timestamp = datetime.fromisoformat(values["TIMESTAMP"])
    except ValueError:
        raise ValueError(
            f"{where}, column TIMESTAMP: must be a date and time such as "
            f"'2023-11-16 18:17:03.979', got {values['TIMESTAMP']!r}"
        ) from None
    for name in COLUMNS[1:]:
        digits = values[name]
        if not (digits.isascii() and digits.isdecimal() and int(digits) >= 1):
            raise ValueError(f"{where}, column {name}: must be an integer >= 1, got {digits!r}")
    return timestamp, int(values["ContextTokens"]), int(values["GeneratedTokens"])


def serve_trace(
    requests: Sequence[TraceRequest], settings: EngineSettings
) -> Iterator[SchedulerOutput]:
    arrivals = (  # a trace has lengths, not tokens
        (
            one.arrival_seconds,
            Request(f"request-{k}", [0] * one.context_tokens, one.generated_tokens),
        )
        for k, one in enumerate(requests)
    )
    return serve(
        Scheduler(settings),
        arrivals,
        execute=lambda step: [{req_id: [0] for req_id in step.sampled_req_ids}],
        duration=lambda step: (
            SECONDS_PER_STEP + SECONDS_PER_TOKEN * sum(step.num_scheduled_tokens.values())
        ),
    )


def _make_batch(step: SchedulerOutput) -> TraceBatch:
    lengths = [
        (num_tokens, step.num_computed_tokens[req_id])
        for req_id, num_tokens in step.num_scheduled_tokens.items()
    ]
    # Decodes have one token, extends more after some that are computed.
    lengths.sort(key=lambda pair: 0 if pair[0] == 1 else 1 if pair[1] > 0 else 2)
    return TraceBatch(*zip(*lengths, strict=True))
