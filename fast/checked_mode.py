"""Checked mode: whether `fast` reads the values of tensors to validate them.

A `with fast.checks(True):` block applies to the running thread or asyncio task. Outside such blocks
the mode of the process applies: the last plain call `fast.checks(...)` sets it, or `FAST_CHECKS`.
"""

import os
import threading
import weakref
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Self

import numpy as np

VARIABLE: Final = "FAST_CHECKS"
"""The environment variable for checked mode: "1" is on, "0" or unset is off."""


class checks:  # noqa: N801  (called like a function)
    """Enable or disable checked mode.

    As a context manager it applies until the end of the block, to the running thread or asyncio
    task only. Called on its own, it applies to the whole process, outside such blocks.

    In checked mode `fast` reads the values of its tensors and rejects exactly what `reference`
    rejects. On a GPU that synchronises. `FAST_CHECKS=1` in the environment enables it at import.

    Args:
        enabled: Whether to check.

    Raises:
        TypeError: An argument that is not a bool.

    Example:
        >>> import torch, fast
        >>> with fast.checks(True):
        ...     fast.get_dcp_local_seq_lens(torch.tensor([-1], dtype=torch.int32))
        Traceback (most recent call last):
        ValueError: seq_lens[0] is -1, expected at least 0

    Source: kvtwin's own; `reference` always checks.
    """

    def __init__(self, enabled: bool) -> None:
        if not isinstance(enabled, bool | np.bool_):
            kind = type(enabled).__name__
            raise TypeError(f"enabled must be a bool, got {enabled!r} of {kind}")
        self._enabled = bool(enabled)
        _PROCESS.switch(self, self._enabled)

    def __enter__(self) -> Self:
        _PROCESS.take_back(self)
        _BLOCKS.set((*_BLOCKS.get(), self._enabled))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _BLOCKS.set(_BLOCKS.get()[:-1])


class ProcessMode:
    """The mode outside of blocks.

    `checks(True)` switches the mode of the process even at the start of a `with` block, but a block
    must leave the process unchanged. So each switch is recorded while its object lives: entering
    the object undoes the switch, and dropping it makes the switch permanent. Until it is entered,
    the switch applies to other threads too, outside of their own blocks.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._permanent = enabled
        self._switches: list[tuple[weakref.ref[checks], bool]] = []
        self._lock = threading.RLock()  # a signal handler may switch in the middle of a switch

    def switch(self, by: checks, enabled: bool) -> None:
        """Switch the mode, until `by` is entered."""
        with self._lock:
            self._forget_dropped()
            self._switches.append((weakref.ref(by), enabled))
            self.enabled = enabled

    def take_back(self, by: checks) -> None:
        """Undo the switch of an object, if it is still recorded."""
        with self._lock:
            self._forget_dropped()
            self._switches = self._others(by)
            self.enabled = self._switches[-1][1] if self._switches else self._permanent

    def _others(self, by: checks) -> list[tuple[weakref.ref[checks], bool]]:
        """Return the switches of other objects.

        Not inside the `with`: Python 3.12 and 3.13 leave the lock locked if a signal handler raises
        in a comprehension with an `if` there.
        """
        return [switch for switch in self._switches if switch[0]() is not by]

    def _forget_dropped(self) -> None:
        """Make the last switch whose object was dropped permanent, and forget earlier switches."""
        for at in reversed(range(len(self._switches))):
            if self._switches[at][0]() is None:
                self._permanent = self._switches[at][1]
                del self._switches[: at + 1]
                return


def read_variable() -> bool:
    """Return whether the environment enables checked mode; ValueError if it is neither 0 nor 1."""
    value = os.environ.get(VARIABLE, "")
    if value not in {"", "0", "1"}:
        raise ValueError(f"{VARIABLE} is {value!r}, expected '0' or '1'")
    return value == "1"


def is_checked() -> bool:
    """Return whether checked mode is on here."""
    blocks = _BLOCKS.get()
    return blocks[-1] if blocks else _PROCESS.enabled


_PROCESS: Final = ProcessMode(read_variable())
_BLOCKS: Final[ContextVar[tuple[bool, ...]]] = ContextVar("fast.checks", default=())
"""The modes of the enclosing blocks, the innermost last."""
