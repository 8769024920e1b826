"""Handle the signals that end a night, SIGINT and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def catching_signals(interrupt: Callable[[str], Any]) -> Iterator[None]:
    """Call a function with the name of the first SIGINT or SIGTERM; a second one ends the process.

    An ignored signal, as SIGINT under nohup, stays ignored.

    Args:
        interrupt: The function, which is called in the main thread between two instructions.
    """
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        for each, handler in before.items():
            signal.signal(each, handler)
        interrupt(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
