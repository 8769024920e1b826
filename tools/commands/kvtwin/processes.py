"""The processes that this one has started."""

from __future__ import annotations

import multiprocessing


def kill_all() -> None:
    """Kill all processes that this one has started."""
    for process in multiprocessing.active_children():
        process.kill()
