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
from typing import Any

from conformance.engine.arrivals import Arrivals
from conformance.engine.block_pool import BlockPool
from conformance.engine.cache_group import AttentionGroup
from conformance.engine.request import Request
from conformance.engine.scheduler import Scheduler, longest_request
from conformance.engine.scheduler_output import SchedulerOutput
from conformance.engine.settings import EngineSettings

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
DEFAULT_TRACE = Path(__file__).with_name("default_trace.csv")
"""A generated trace: short and long prompts, one longer than a chunk of 8192, in bursts."""
SECONDS_PER_STEP = 0.03
SECONDS_PER_TOKEN = 0.0001
BLOCK_SIZE = 16
POOL_BLOCKS = 1281
"""Small on purpose: a few long prompts fill it, so that requests are preempted."""
SETTINGS = EngineSettings(long_prefill_token_threshold=655)
"""As in vLLM, a chunk of a prompt has at most 4% of the longest sequence."""


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


@cache
def trace_steps(
    path: Path = DEFAULT_TRACE, limit: int = 200, settings: EngineSettings = SETTINGS
) -> Sequence[TraceBatch]:
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
    longest = longest_request(settings, [AttentionGroup(BLOCK_SIZE)], POOL_BLOCKS - 1)
    requests = [
        request
        for request in read_trace(path)
        if request.context_tokens + request.generated_tokens <= longest
    ]
    if not requests:
        raise ValueError(f"{path} has no request of at most {longest} tokens")
    return [_make_batch(step) for step in islice(serve(requests, settings), limit)]


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


def serve(requests: Sequence[TraceRequest], settings: EngineSettings) -> Iterator[SchedulerOutput]:
    """Yield step after step until every request has ended."""
    pool = BlockPool(POOL_BLOCKS, reuses_latest=True)
    scheduler = Scheduler(settings, [AttentionGroup(BLOCK_SIZE)], pool)
    arrivals = Arrivals(
        (request.arrival_seconds, (number, request)) for number, request in enumerate(requests)
    )
    while arrivals or scheduler.has_requests:
        for number, request in arrivals.receive(is_idle=not scheduler.has_requests):
            prompt = [0] * request.context_tokens  # a trace has lengths, not tokens
            scheduler.add_request(Request(f"request-{number}", prompt, request.generated_tokens))
        step = scheduler.schedule()
        if step is not None:
            num_tokens = sum(step.num_scheduled_tokens.values())
            arrivals.clock += SECONDS_PER_STEP + SECONDS_PER_TOKEN * num_tokens
            scheduler.update_from_output(step, {req_id: [0] for req_id in step.sampled_req_ids})
            yield step


def _make_batch(step: SchedulerOutput) -> TraceBatch:
    """Put the lengths of a step's requests in batch order."""
    lengths = [
        (num_tokens, step.num_computed_tokens[req_id])
        for req_id, num_tokens in step.num_scheduled_tokens.items()
    ]
    # Decodes have one token, extends more after some that are computed.
    lengths.sort(key=lambda pair: 0 if pair[0] == 1 else 1 if pair[1] > 0 else 2)
    return TraceBatch(*zip(*lengths, strict=True))
