"""One call of one twin, and what came of it."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NoReturn

import numpy as np
import torch

import reference
from conformance.comparison import (
    Difference,
    Verdict,
    as_bytes,
    field_name,
    first_difference,
    is_array,
    parts,
)
from conformance.contracts import Call, Contract
from conformance.sides import PLAIN, Manner, Side
from tools.probe.target import ReferenceTarget

MEANING: Final = ReferenceTarget("reference", reference, None)

POISONS: Final = (0x5A, 0xA5)
"""What fresh memory is filled with, in one run of a call and in the other."""

_LIBC: Final = ctypes.CDLL(None)
_M_PERTURB: Final = -6
_POISON = {"byte": POISONS[0]}


BEFORE_A_CALL: Final[list[Callable[[Call], None]]] = []
"""What is told every call of `fast` before it is made."""


class TooSlowError(BaseException):
    """`reference` took longer than a comparison is worth."""


@dataclasses.dataclass
class Outcome:
    """What a call did.

    Attributes:
        side: the copies of its arguments; None where they could not even be made.
        result: what it returned.
        error: what it raised.
        seconds: processor time.
        grown_bytes: by how much the process' greatest size rose.
    """

    side: Side | None = None
    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    grown_bytes: int = 0


def poison(byte: int) -> None:
    """Let fresh memory be filled with a byte: that of malloc, and NumPy's, which has its own."""
    _LIBC.mallopt(_M_PERTURB, byte ^ 0xFF)
    _POISON["byte"] = byte


def warm_checked_mode() -> None:
    """Compile the loops of checked mode, which `fast.warmup` leaves to the first call."""
    from fast._native.compiler import COMPILED  # noqa: PLC0415  # the one place that knows

    for loop in COMPILED:
        loop._compile_bounds_checked()  # noqa: SLF001  # there is no other way


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
    target: Any,
    call: Call,
    *,
    checked: bool,
    manner: Manner = PLAIN,
    is_protected: bool = False,
    inside: Any = None,
) -> Outcome:
    """Call what is probed.

    Args:
        target: it.
        call: with what.
        checked: whether in checked mode.
        manner: how.
        is_protected: whether what may not change lies on read-only pages.
        inside: a context manager in which the call is made.
    """
    for tell in BEFORE_A_CALL:
        tell(call)
    outcome = Outcome()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with target.implementation.checks(checked), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            outcome.side = Side(target, call, manner)
            if is_protected:
                outcome.side.carrier.protect()  # type: ignore[attr-defined]  # a PlacingCarrier
            with inside or nullcontext():
                outcome.result = outcome.side.run()
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises is judged
            outcome.error = error
    outcome.seconds = time.process_time() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome.grown_bytes = (after - before) * 1024
    return outcome


def call_reference(call: Call, *, seconds: float = 0.5) -> Outcome | None:
    """Call `reference`; None where that takes too long or too much memory."""
    outcome = Outcome()
    try:
        with time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome.side = Side(MEANING, call)
            outcome.result = outcome.side.run()
    except (TooSlowError, MemoryError, RecursionError):
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises is compared
        outcome.error = error
    return outcome


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlowError` inside after some time."""

    def ring(*_: object) -> NoReturn:
        raise TooSlowError

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def compare(
    contract: Contract, wanted: Outcome, got: Outcome, changed: Sequence[str] = ()
) -> str | None:
    """Return the first difference, as `difference_of` finds it, in a line."""
    difference = difference_of(contract, wanted, got, changed)
    return None if difference is None else difference.line


def difference_of(
    contract: Contract, wanted: Outcome, got: Outcome, changed: Sequence[str] = ()
) -> Difference | None:
    """Return the first difference of a result, and of what was changed, from `reference`'s.

    Args:
        contract: what is stated about the function.
        wanted: what `reference` did.
        got: what is compared with it.
        changed: the places of the call that were made strange, which a result may hand through.
    """
    shows: Callable[[Any], Any] = contract.shows or (lambda result: result)
    difference = first_difference(shows(wanted.result), shows(got.result))
    if difference is None or is_of_subclass(difference, got.result):
        difference = _compare_changes(contract, wanted, got)
    if difference is not None and difference.verdict is not Verdict.VALUE:
        names = {field_name(path) for path in changed}
        if names & set(re.findall(r"\w+", difference.path)):
            return None
    return difference


def is_of_subclass(difference: Difference, result: Any) -> bool:
    """Tell whether the only difference is a subclass of tensor, which torch passes on."""
    return difference.verdict is Verdict.TYPE and any(
        isinstance(part, torch.Tensor) and type(part) is not torch.Tensor
        for _, part in parts(result, "result")
    )


def _compare_changes(contract: Contract, wanted: Outcome, got: Outcome) -> Difference | None:
    if wanted.side is None or got.side is None:
        return None
    ours, theirs = wanted.side.arguments, got.side.arguments
    if contract.observe is not None:
        return first_difference(contract.observe(ours), contract.observe(theirs), "changed")
    for name in sorted(contract.changes & set(ours)):
        difference = first_difference(ours[name], theirs[name], name)
        if difference is not None:
            return difference
    return None


def contents(value: Any) -> list[tuple[str, bytes]]:
    """Return the bytes of all arrays of a result, with their paths."""
    return [
        (path, as_bytes(part).tobytes())
        for path, part in parts(value, "result")
        if is_array(part) and _is_readable(part)
    ]


def _is_readable(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        return type(array) is torch.Tensor and array.layout is torch.strided and array.is_cpu
    return array.dtype.kind in "iufcb"
