"""Draw what may crash or hang in a forked child; `forked_calls` makes calls there."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Callable
from typing import IO, Any, Final

from hypothesis.errors import StopTest
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.execution.forked_calls import HANG, run_in_child

CASE_SECONDS: Final = 20.0
"""A case that takes longer hangs; a worker waits a little longer for one."""

HANG_SECONDS: Final = 3.0
"""One that is like a case that hung for much longer hangs if it takes longer than this."""


class ProcessDiedError(Exception):
    """A case that ended its process, or did not end.

    Args:
        how: `SIGSEGV`, `exit 3`, `hang`.
    """

    def __init__(self, how: str) -> None:
        super().__init__("the call hangs" if how == HANG else f"the process died: {how}")
        self.how = how


def draw_in_child(
    draw: Callable[[ConjectureData], object], data: ConjectureData, seconds: float = CASE_SECONDS
) -> str:
    """Call a function that draws in a forked child, and draw the same here.

    Args:
        draw: Draws, and may die of what it drew.
        data: What it draws from; afterwards all that the child drew has been drawn from it.
        seconds: How long it may take.

    Returns:
        How the child died; empty if it came to its end.
    """
    with tempfile.TemporaryFile(buffering=0) as record:

        def call() -> None:
            _record_draws(data, record)
            draw(data)

        how = run_in_child(call, seconds)
        record.seek(0)
        with contextlib.suppress(EOFError, StopTest):
            while True:
                name, arguments, options = pickle.load(record)  # noqa: S301  # our own child's
                getattr(data, name)(*arguments, **options)
    return how


def _record_draws(data: ConjectureData, record: IO[bytes]) -> None:
    """Let data write down each draw before it is made, and where spans of draws begin and end."""

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(data, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if options.get("observe", True):  # others are parts of a draw
                record.write(pickle.dumps((name, arguments, options)))
            return method(*arguments, **options)

        return call

    for name in ("_draw", "start_span", "stop_span"):
        setattr(data, name, recorded(name))
