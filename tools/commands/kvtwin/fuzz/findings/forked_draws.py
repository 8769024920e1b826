"""Run draws that may crash or hang in a forked child, and repeat them here."""

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
"""A case that takes longer counts as hung; a worker waits a little longer for one."""

HANG_SECONDS: Final = 3.0
"""The shorter limit for replaying or minimizing a case that hung."""


class ProcessDiedError(Exception):
    """A case crashed its process, or hung.

    Args:
        how: Such as `SIGSEGV`, `exit 3`, `hang`.
    """

    def __init__(self, how: str) -> None:
        super().__init__("the call hangs" if how == HANG else f"the process died: {how}")
        self.how = how


def draw_in_child(
    draw: Callable[[ConjectureData], object],
    data: ConjectureData,
    seconds: float = CASE_SECONDS,
    max_bytes: int | None = None,
) -> str:
    """Call a function that draws in a forked child, then repeat the child's draws here.

    Args:
        draw: Draws from the data, and may crash.
        data: The data; afterwards it contains all draws of the child.
        seconds: How long the child may take.
        max_bytes: How much resident memory it may have; None for no limit.

    Returns:
        How the child died; empty if it finished.
    """
    with tempfile.TemporaryFile(buffering=0) as record:

        def call() -> None:
            _record_draws(data, record)
            draw(data)

        how = run_in_child(call, seconds, max_bytes=max_bytes)
        record.seek(0)
        with contextlib.suppress(EOFError, StopTest):
            while True:
                name, arguments, options = pickle.load(record)  # noqa: S301  # our own child's
                getattr(data, name)(*arguments, **options)
    return how


def _record_draws(data: ConjectureData, record: IO[bytes]) -> None:
    """Make data record each draw before it is made, and the begins and ends of spans."""

    def recorded(name: str) -> Callable[..., Any]:
        method = getattr(data, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if options.get("observe", True):  # others are parts of a draw
                record.write(pickle.dumps((name, arguments, options)))
            return method(*arguments, **options)

        return call

    for name in ("_draw", "start_span", "stop_span"):
        setattr(data, name, recorded(name))
