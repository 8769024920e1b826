"""Worker contexts for jobs that tests run in their own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class KeepingContext:
    """A worker context that records inputs and messages.

    Args:
        is_over: Returns whether the job should end soon.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        self.is_over = is_over
        self.inputs: list[bytes] = []
        self.messages: list[Any] = []

    def note_input(self, data: bytes) -> None:
        """Record an input."""
        self.inputs.append(data)

    def report(self, message: object) -> None:
        """Record a message."""
        self.messages.append(message)


def free_monitoring_tools() -> None:
    """Free the fuzzer's tool ids of `sys.monitoring`: there are three, and a worker takes one."""
    monitoring: Any = getattr(sys, "monitoring", None)
    for tool in (1, 3, 4) if monitoring else ():
        if monitoring.get_tool(tool) == "kvtwin-fuzz":
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)


class SilentContext(KeepingContext):
    """A worker context that fails if a job reports anything."""

    def report(self, message: object) -> None:
        """Raise: no message is expected."""
        raise AssertionError(message)
