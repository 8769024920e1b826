"""Batches cut from a run of the scheduler: the harness's real traffic."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from conformance.engine.scheduler_output import SchedulerOutput
from conformance.traffic.engine import TraceEngine
from conformance.traffic.settings import Settings
from conformance.traffic.trace import DEFAULT_TRACE, TraceRequest, read_trace
from conformance.zoo.models import get_model

Int32: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]

DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True, kw_only=True)
class TraceBatch:
    """The facts of one step's batch, in batch order: decodes, then extends, then prefills.

    Attributes:
        req_ids: The requests.
        query_lens: int32[num_reqs], new tokens.
        num_computed_tokens: int32[num_reqs], tokens in the cache before the step.
        num_prompt_tokens: int32[num_reqs], length of the prompt.
        block_sizes: Of each KV cache group.
        block_ids: For each group and request, int32[num_blocks], the blocks of the sequence; those
            of the step's new tokens are among them.
        decode_threshold: The most new tokens of a decode.
    """

    req_ids: tuple[str, ...]
    query_lens: Int32
    num_computed_tokens: Int32
    num_prompt_tokens: Int32
    block_sizes: tuple[int, ...]
    block_ids: tuple[tuple[Int32, ...], ...]
    decode_threshold: int


def trace_steps(
    path: str | Path | None = None,
    model: str = "llama-3.1-8b",
    limit: int = 200,
    *,
    settings: Settings = DEFAULT_SETTINGS,
    seed: int = 0,
) -> list[TraceBatch]:
    """Serve a trace and return the batches of its steps.

    They are made once in a process for the same arguments; their arrays cannot be written.

    Args:
        path: Of the trace; None: the project's own.
        model: By its name in the zoo.
        limit: The most steps.
        settings: Of the engine. Requests that it cannot serve are left out.
        seed: Of the accepted draft tokens.

    Returns:
        The batches, step by step.

    Raises:
        KeyError: No such model, or no such column in the trace.
        ValueError: A trace that cannot be read, or of which the engine can serve nothing.

    Example:
        >>> first = trace_steps(limit=3)[0]
        >>> first.query_lens.tolist(), first.num_computed_tokens.tolist()
        ([21], [0])
    """
    return list(_trace_steps(Path(path or DEFAULT_TRACE), model, limit, settings, seed))


def servable(
    requests: Sequence[TraceRequest], model: str, settings: Settings
) -> list[TraceRequest]:
    """Leave out the requests that an engine would refuse: too long for it, or for its blocks.

    Args:
        requests: By arrival.
        model: By its name in the zoo.
        settings: Of the engine.

    Returns:
        Those that it can serve.

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
    rows: dict[str, tuple[list[int], ...]] = {}
    batches = []
    for step in islice(engine, limit):
        for req_id, new_block_ids in step.new_block_ids.items():
            if req_id in step.admitted_req_ids:
                rows[req_id] = tuple([] for _ in engine.groups)
            for row, ids in zip(rows[req_id], new_block_ids, strict=True):
                row.extend(ids)
        batches.append(
            _make_batch(step, rows, tuple(group.block_size for group in engine.groups), settings)
        )
    return tuple(batches)


def _make_batch(
    step: SchedulerOutput,
    rows: dict[str, tuple[list[int], ...]],
    block_sizes: tuple[int, ...],
    settings: Settings,
) -> TraceBatch:
    """Make a step's batch, given the rows of blocks as they are after it."""
    req_ids = sorted(step.num_scheduled_tokens, key=lambda r: _region(step, r, settings))
    return TraceBatch(
        req_ids=tuple(req_ids),
        query_lens=_array([step.num_scheduled_tokens[r] for r in req_ids]),
        num_computed_tokens=_array([step.num_computed_tokens[r] for r in req_ids]),
        num_prompt_tokens=_array([step.num_prompt_tokens[r] for r in req_ids]),
        block_sizes=block_sizes,
        block_ids=tuple(
            tuple(_array(rows[r][group]) for r in req_ids) for group in range(len(block_sizes))
        ),
        decode_threshold=settings.decode_threshold,
    )


def _region(step: SchedulerOutput, req_id: str, settings: Settings) -> int:
    """Return the place of a request in batch order: decode, extend or prefill."""
    if step.num_scheduled_tokens[req_id] <= settings.decode_threshold:
        return 0
    return 1 if step.num_computed_tokens[req_id] > 0 else 2


def _array(values: list[int]) -> Int32:
    """Make an int32 array that cannot be written."""
    array = np.array(values, np.int32)
    array.flags.writeable = False
    return array
