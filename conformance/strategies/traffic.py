"""Batches cut from a trace of real requests by a continuous-batching scheduler."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from conformance.engine.trace import DEFAULT_TRACE, TraceBatch, trace_steps
from conformance.strategies import cached as st

_TRACE = [DEFAULT_TRACE]


def use_trace(path: Path | None) -> None:
    """Cut the batches of this process from another trace; None: from the project's own.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no trace, or has no request that the engine can serve.
    """
    _TRACE[:] = [path or DEFAULT_TRACE]
    _steps.cache_clear()
    if path is not None:
        _steps()


@cache
def _steps() -> list[TraceBatch]:
    found = set(trace_steps(_TRACE[0]))
    # A failing batch shrinks towards the first.
    return sorted(found, key=lambda b: (sum(b.query_lens), b.query_lens, b.num_computed_tokens))


def traffic_batches() -> st.SearchStrategy[TraceBatch]:
    """Draw a step of the trace's run."""
    return st.deferred(lambda: st.sampled_from(_steps()))
