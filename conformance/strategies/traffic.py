"""Batches cut from a trace of real requests by a continuous-batching scheduler."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from conformance.strategies import cached as st
from conformance.traffic.engine import TraceBatch, trace_steps

_TRACE: list[Path] = []
"""The trace given by `--trace`; empty for the project's own."""


def use_trace(path: Path | None) -> None:
    """Cut the batches of this process from another trace.

    Args:
        path: A CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens; None for the
            project's own trace.
    """
    _TRACE[:] = [] if path is None else [path]
    _steps.cache_clear()


@cache
def _steps() -> list[TraceBatch]:
    found = set(trace_steps(_TRACE[0] if _TRACE else None))
    # A failing batch shrinks towards the first.
    return sorted(found, key=lambda b: (sum(b.query_lens), b.query_lens, b.num_computed_tokens))


def traffic_batches() -> st.SearchStrategy[TraceBatch]:
    """Draw a step of the trace's run."""
    return st.deferred(lambda: st.sampled_from(_steps()))
