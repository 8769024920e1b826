"""Batches cut from a trace of real requests by a continuous-batching scheduler."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from conformance.traffic.batches import trace_steps

_TRACE: list[Path] = []
"""The trace that `--trace` named; empty for the project's own."""


def use_trace(path: Path | None) -> None:
    """Cut the batches of this process from another trace.

    Args:
        path: A CSV file with the columns TIMESTAMP, ContextTokens and GeneratedTokens; None for the
            project's own trace.
    """
    _TRACE[:] = [] if path is None else [path]
    _steps.cache_clear()


@dataclasses.dataclass(frozen=True)
class TrafficBatch:
    """The lengths of one step's requests, in batch order."""

    query_lens: tuple[int, ...]
    num_computed_tokens: tuple[int, ...]


@cache
def _steps() -> list[TrafficBatch]:
    found = {
        TrafficBatch(
            tuple(int(q) for q in step.query_lens), tuple(int(c) for c in step.num_computed_tokens)
        )
        for step in trace_steps(_TRACE[0] if _TRACE else None)
    }
    # A failing batch shrinks towards the first.
    return sorted(found, key=lambda b: (sum(b.query_lens), b.query_lens, b.num_computed_tokens))


def traffic_batches() -> st.SearchStrategy[TrafficBatch]:
    """Draw a step of the trace's run."""
    return st.deferred(lambda: st.sampled_from(_steps()))
