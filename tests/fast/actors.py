"""Threads that run one step at a time, on request, so that a test can choose any interleaving."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Actor:
    """A thread that runs one step at a time, on request."""

    def __init__(self) -> None:
        self._acts: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, act: Callable[[], object], seconds: float = 60) -> Any:
        """Run a function in the thread, and return its result or raise its exception.

        Raises:
            queue.Empty: It takes longer than `seconds`. `result` waits for it again.
        """
        self._acts.put(act)
        return self.result(seconds)

    def result(self, seconds: float = 60) -> Any:
        """Wait for the result of the last step, after `do` raised `queue.Empty`."""
        answer, error = self._answers.get(timeout=seconds)
        if error is not None:
            raise error
        return answer

    def end(self) -> None:
        """End the thread."""
        self._acts.put(None)
        self._thread.join(timeout=60)

    def _run(self) -> None:
        while (act := self._acts.get()) is not None:
            try:
                self._answers.put((act(), None))
            except BaseException as error:  # noqa: BLE001  (raised again in the requesting thread)
                self._answers.put((None, error))


@contextmanager
def actors(count: int) -> Iterator[list[Actor]]:
    """Start threads, and end them after the block."""
    started = [Actor() for _ in range(count)]
    try:
        yield started
    finally:
        for actor in started:
            actor.end()
