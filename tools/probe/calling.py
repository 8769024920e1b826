"""Make one call of one twin, and record its effects."""

from __future__ import annotations

import ctypes
import dataclasses
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NoReturn

import numpy as np

from conformance.execution.invocations import PLAIN, CallVariant, Invocation
from conformance.values.call import Call
from tools.probe.target import REFERENCE, PlayingTarget, ProbedTarget

POISONS: Final = (0x5A, 0xA5)
"""What fresh memory is filled with, in one run of a call and in the other."""

_LIBC: Final = ctypes.CDLL(None)
_M_PERTURB: Final = -6
_POISON = {"byte": POISONS[0]}


BEFORE_A_CALL: Final[list[Callable[[Call], None]]] = []
"""Called with every call of `fast` before it is made."""


class TooSlowError(BaseException):
    """A call took longer than its time limit."""


@dataclasses.dataclass
class Outcome:
    """What a call did.

    Attributes:
        invocation: The copies of its arguments; None if they could not be made.
        result: What it returned.
        error: What it raised.
        seconds: Its processor time.
        grown_bytes: By how much the process' peak size rose.
    """

    invocation: Invocation | None = None
    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    grown_bytes: int = 0


def poison(byte: int) -> None:
    """Let fresh memory be filled with a byte: that of malloc, and NumPy's, which has its own."""
    _LIBC.mallopt(_M_PERTURB, byte ^ 0xFF)
    _POISON["byte"] = byte


def poison_numpy() -> None:
    """Let `np.empty` of Python code return poison, until the process ends."""
    empty, empty_like = np.empty, np.empty_like

    def filled(array: Any) -> Any:
        if type(array) is np.ndarray and array.dtype.kind in "iufcb" and array.flags.c_contiguous:
            array.reshape(-1).view(np.uint8).fill(_POISON["byte"] if array.dtype.kind != "b" else 1)
        return array

    np.empty = lambda *args, **keywords: filled(empty(*args, **keywords))
    np.empty_like = lambda *args, **keywords: filled(empty_like(*args, **keywords))


def call_fast(
    target: ProbedTarget,
    call: Call,
    *,
    checked: bool,
    variant: CallVariant = PLAIN,
    is_protected: bool = False,
    inside: Any = None,
    seconds: float = 0,
) -> Outcome:
    """Call what is probed.

    Args:
        target: Where it is found, and what copies its arguments.
        call: The call.
        checked: Whether in checked mode.
        variant: How the call is made.
        is_protected: Whether what may not change lies on read-only pages.
        inside: A context manager in which the call is made.
        seconds: After how long the call is ended, as too slow; 0: never.
    """
    outcome = Outcome()
    with target.find("checks")(checked), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            outcome.invocation = copy_arguments(target, call, variant)
            if is_protected:
                outcome.invocation.converter.protect()  # type: ignore[attr-defined]  # a PlacingConverter
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.process_time()
            with inside or nullcontext(), time_limit(seconds):
                outcome.result = outcome.invocation.run()
        except TooSlowError:
            outcome.error = TimeoutError(f"took longer than {seconds} s")
        except (Exception, SystemExit) as error:  # noqa: BLE001  # it is checked whatever it is
            outcome.error = error
    if outcome.invocation is not None:
        outcome.seconds = time.process_time() - start
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome.grown_bytes = (after - before) * 1024
    return outcome


def copy_arguments(target: ProbedTarget, call: Call, variant: CallVariant = PLAIN) -> Invocation:
    """Return the copies of a call's arguments, with which it can be made."""
    for report in BEFORE_A_CALL:
        report(call)
    return Invocation(target, call, variant, target.changes)


def call_reference(
    call: Call, *, seconds: float = 0.5, target: PlayingTarget = REFERENCE
) -> Outcome | None:
    """Call `reference`; None where that takes too long or too much memory."""
    outcome = Outcome()
    try:
        with time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome.invocation = Invocation(target, call)
            outcome.result = outcome.invocation.run()
    except (TooSlowError, MemoryError, RecursionError):
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # it is compared whatever it is
        outcome.error = error
    return outcome


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` inside after some time; 0: never."""
    if not seconds:
        yield
        return

    def ring(*_: object) -> NoReturn:
        raise TooSlowError

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
