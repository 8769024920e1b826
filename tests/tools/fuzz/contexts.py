"""The context that a job has in a worker, for jobs that tests run in their own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class KeepingContext:
    """A worker's context that keeps what it is given.

    Args:
        is_over: Whether the job should end soon.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        self.is_over = is_over
        self.inputs: list[bytes] = []
        self.messages: list[Any] = []

    def note_input(self, data: bytes) -> None:
        """Keep an input."""
        self.inputs.append(data)

    def report(self, message: object) -> None:
        """Keep a message."""
        self.messages.append(message)


def free_monitoring_tools() -> None:
    """Free the tools of `sys.monitoring`, of which each new worker's memory takes one of three."""
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in (1, 3, 4) if monitoring else ():
        if monitoring.get_tool(tool) == "kvtwin-fuzz":
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)


class SilentContext(KeepingContext):
    """A worker's context for a job that reports nothing."""

    def report(self, message: object) -> None:
        """Refuse a message."""
        raise AssertionError(message)
