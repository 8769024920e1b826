"""Batches cut from a run of the scheduler: the harness's real traffic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.engine import TraceEngine
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, TraceRequest, read_trace
from conformance.zoo.models import get_model

DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True)
class TraceBatch:
    """The lengths of one step's requests, in batch order: decodes, then extends, then prefills.

    Attributes:
        query_lens: New tokens of each request.
        num_computed_tokens: Tokens of each request in the cache before the step.
    """

    query_lens: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]


def trace_steps(
    path: str | Path | None = None,
    model: str = "llama-3.1-8b",
    limit: int = 200,
    *,
    settings: Settings = DEFAULT_SETTINGS,
    seed: int = 0,
) -> list[TraceBatch]:
    """Serve a trace and return the batches of its steps, at most `limit`.

    The same arguments return the same batches of this process. The default trace is the project's
    own. Requests that the engine cannot serve are left out; `seed` decides which drafts are
    accepted.

    Raises:
        KeyError: No such model, or no such column in the trace.
        ValueError: A trace that cannot be read, or of which the engine can serve nothing.

    Example:
        >>> first = trace_steps(limit=3)[0]
        >>> first.query_lens, first.num_computed_tokens
        ((21,), (0,))
    """
    return list(_trace_steps(Path(path or DEFAULT_TRACE), model, limit, settings, seed))


def servable(
    requests: Sequence[TraceRequest], model: str, settings: Settings
) -> list[TraceRequest]:
    """Return the requests that an engine can serve: not too long for it, or for its blocks.

    Example:
        >>> trace = [TraceRequest(0.0, 90, 20), TraceRequest(0.5, 9, 2)]
        >>> servable(trace, "llama-3.1-8b", Settings(max_model_len=100))
        [TraceRequest(arrival_seconds=0.5, context_tokens=9, generated_tokens=2)]
    """
    longest = settings.longest_request(get_model(model))
    return [request for request in requests if request.total_tokens <= longest]


@functools.lru_cache(maxsize=16)
def _trace_steps(
    path: Path, model: str, limit: int, settings: Settings, seed: int
) -> tuple[TraceBatch, ...]:
    """Serve a trace and make the batches of its steps."""
    requests = servable(read_trace(path), model, settings)
    if not requests:
        raise ValueError(f"{path} has no request that settings {settings} can serve")
    engine = TraceEngine(requests, get_model(model), settings, seed=seed)
    return tuple(_make_batch(step, settings) for step in islice(engine, limit))


def _make_batch(step: SchedulerOutput, settings: Settings) -> TraceBatch:
    """Put the lengths of a step's requests in batch order."""
    lengths = [
        (num_tokens, step.num_computed_tokens[req_id])
        for req_id, num_tokens in step.num_scheduled_tokens.items()
    ]
    lengths.sort(key=lambda pair: _region(pair[0], pair[1], settings))
    return TraceBatch(*zip(*lengths, strict=True))


def _region(query_len: int, num_computed_tokens: int, settings: Settings) -> int:
    """Return the place of a request in batch order: decode, extend or prefill."""
    if query_len <= settings.decode_threshold:
        return 0
    return 1 if num_computed_tokens > 0 else 2
