"""The call in progress, in memory shared with forked processes, so that it survives a crash.

Each call is recorded here before it is made, in less than 1 us.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final


class Progress(ctypes.Structure):
    """The call in progress.

    Attributes:
        examples: How many examples of the test have begun.
        calls: How many functions have been looked up to be called, by all tests.
        function: The function looked up last.
        call_id: The `id` of its `Call`; 0 if there is none.
        is_paused: Whether a debugger waits for input.
    """

    examples: int
    calls: int
    function: bytes
    call_id: int
    is_paused: bool
    _fields_ = (
        ("examples", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("function", ctypes.c_char * 200),
        ("call_id", ctypes.c_int64),
        ("is_paused", ctypes.c_bool),
    )

    def note(self, function: str) -> None:
        """Record that a function will be called."""
        self.calls += 1
        self.function = function.encode()

    @property
    def total(self) -> int:
        """A number that changes whenever a test makes progress."""
        return self.calls + self.examples


PROGRESS: Final = Progress.from_buffer(mmap.mmap(-1, ctypes.sizeof(Progress)))
"""The progress of this process and of those that it forked; only one of them runs at a time."""
