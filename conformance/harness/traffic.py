"""Batches cut from a trace of real requests by a continuous-batching scheduler."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from conformance.engine.trace import DEFAULT_TRACE, TraceBatch, trace_steps

_TRACE: Final = [DEFAULT_TRACE]


def use_trace(path: Path | None) -> None:
    """Cut the batches of this process from another trace; None: from the project's own.

    Raises:
        ValueError: The file cannot be read, is no trace, or has no request that can be served.
    """
    _TRACE[:] = [path or DEFAULT_TRACE]
    _steps.cache_clear()
    if path is not None:
        try:
            _steps()
        except OSError as error:
            raise ValueError(f"--trace {path}: {error.strerror}") from error
        except ValueError as error:  # which begins with the name of the file
            raise ValueError(f"--trace {error}") from error


@cache
def _steps() -> list[TraceBatch]:
    found = set(trace_steps(_TRACE[0]))
    # A failing batch shrinks towards the first.
    return sorted(found, key=lambda b: (sum(b.query_lens), b.query_lens, b.num_computed_tokens))


def traffic_batches() -> st.SearchStrategy[TraceBatch]:
    """Draw a step of the trace's run."""
    return st.deferred(lambda: st.sampled_from(_steps()))
