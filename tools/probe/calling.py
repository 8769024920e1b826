"""Make one call of one twin, and record its effects."""

from __future__ import annotations

import ctypes
import dataclasses
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import numpy as np

from conformance.execution.invocations import PLAIN, CallVariant, Invocation
from conformance.values.call import Call
from tools.probe.target import REFERENCE, ProbedTarget, ScenarioTarget

POISONS: Final = (0x5A, 0xA5)
"""The bytes with which fresh memory is filled, in the first call and in the second."""

_LIBC: Final = ctypes.CDLL(None)
_M_PERTURB: Final = -6
_POISON = {"byte": POISONS[0]}


BEFORE_A_CALL: Final[list[Callable[[Call], None]]] = []
"""Called with every call of `fast` before it is made."""


class TooSlowError(BaseException):
    """A call took longer than its time limit."""


@dataclasses.dataclass
class Outcome:
    """The outcome of a call.

    Attributes:
        invocation: The invocation, with the copied arguments; None if copying failed.
        result: Its result.
        error: The exception that it raised.
        seconds: Its processor time.
        grown_bytes: The growth of the process' peak resident memory.
    """

    invocation: Invocation | None = None
    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    grown_bytes: int = 0


def poison(byte: int) -> None:
    """Set the byte that fills fresh memory, of malloc and of `poison_numpy`."""
    _LIBC.mallopt(_M_PERTURB, byte ^ 0xFF)
    _POISON["byte"] = byte


def poison_numpy() -> None:
    """Patch `np.empty` to return memory filled with the poison byte, until the process ends."""
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
    seconds: float = 0,
) -> Outcome:
    """Call the implementation under test.

    Args:
        target: The target, which looks up the function and copies the arguments.
        call: The call.
        checked: Whether to call in checked mode.
        variant: The call variant.
        is_protected: Whether arguments that may not change are on read-only pages.
        seconds: The time limit of the call; 0: none.
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
            with time_limit(seconds):
                outcome.result = outcome.invocation.run()
        except TooSlowError:
            outcome.error = TimeoutError(f"took longer than {seconds} s")
        except (Exception, SystemExit) as error:  # noqa: BLE001  # any exception is checked
            outcome.error = error
    if outcome.invocation is not None:
        outcome.seconds = time.process_time() - start
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome.grown_bytes = (after - before) * 1024
    return outcome


def copy_arguments(target: ProbedTarget, call: Call, variant: CallVariant = PLAIN) -> Invocation:
    """Copy the arguments of a call; return the invocation that makes it."""
    for report in BEFORE_A_CALL:
        report(call)
    return Invocation(target, call, variant, target.changes)


def call_reference(
    call: Call, *, seconds: float = 0.5, target: ScenarioTarget = REFERENCE
) -> Outcome | None:
    """Call `reference`; return None if that takes too long or too much memory."""
    outcome = Outcome()
    try:
        with time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome.invocation = Invocation(target, call)
            outcome.result = outcome.invocation.run()
    except (TooSlowError, MemoryError, RecursionError):
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # any exception is compared
        outcome.error = error
    return outcome


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` inside after so many seconds; 0: never."""
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
