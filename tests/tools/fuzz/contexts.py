"""Worker contexts for jobs that tests run in their own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvtwin.fuzz import slices


class KeepingContext:
    """A worker context that records inputs and messages.

    Args:
        is_over: Returns whether the job should end soon.
    """

    memory_bytes: int | None = None

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


@contextlib.contextmanager
def new_memories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give this process the state of a new worker inside, and close its sources of coverage."""
    memories: dict[Any, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(slices, "_MEMORIES", memories)
        try:
            yield
        finally:
            for memory in memories.values():
                for source in memory.sources:
                    source.close()


class SilentContext(KeepingContext):
    """A worker context that fails if a job reports anything."""

    def report(self, message: object) -> None:
        """Raise: no message is expected."""
        raise AssertionError(message)
