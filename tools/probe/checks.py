"""Check the outcome of a call against the promises of `fast`."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from conformance.contracts.contract import Contract
from conformance.targets.implementations import Absent
from conformance.values.call import Call
from conformance.values.parts import children
from tools.probe.calling import Outcome
from tools.probe.differences import difference_in
from tools.probe.sites import sites_of
from tools.probe.strange_objects import HostilityError, OfSubclass
from tools.probe.target import REFERENCE
from tools.probe.violation import Finding, innermost_frame

ALLOWED: Final = frozenset(
    {ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError}
)
"""The classes of exceptions of spec 00."""

MAX_SECONDS: Final = 2.0
MAX_GROWTH_BYTES: Final = 1 << 28
"""The limits of processor time and memory for a call with small inputs."""

MUCH: Final = 1 << 24
"""The number of tokens, blocks or programs from which on the limits do not apply."""

CALLERS_FILES: Final = re.compile(r"/conformance/(strategies/|factories)|/probe/(strange|target)")
"""The files that define the methods of a caller's own objects."""


def is_large_request(call: Call, expected: Outcome | None) -> bool:
    """Return whether the arguments contain a size that takes much time or memory.

    Starts that decrease do not count, unless `reference` accepts them.
    """
    is_accepted = expected is None or expected.error is None
    for site in sites_of(call):
        value: Any = site.value.value if isinstance(site.value, OfSubclass) else site.value
        if isinstance(value, int | np.integer) and value >= MUCH:
            return True
        if isinstance(value, bytes | list | tuple) and _product(value) >= MUCH:
            return True
        if isinstance(value, np.ndarray) and max(value.shape, default=0) >= MUCH:
            return True
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
            falls = value.ndim == 1 and bool((value[1:] < value[:-1]).any())
            if int(value.max()) >= MUCH and (is_accepted or not (falls and "start" in site.path)):
                return True
    return False


def _product(sizes: Sequence[object]) -> int:
    return math.prod(int(size) for size in sizes if isinstance(size, int | np.integer))


def check_resources(outcome: Outcome, *, is_large_request: bool = False) -> Iterator[Finding]:
    """Yield a finding if a call took too long or too much memory."""
    if is_large_request:
        return
    if outcome.seconds > MAX_SECONDS:
        yield "slow", "", f"took {outcome.seconds:.1f} s of processor time"
    if outcome.grown_bytes > MAX_GROWTH_BYTES:
        yield "unbounded allocation", "", f"grew by {outcome.grown_bytes >> 20} MiB"


def check_error(
    call: Call, outcome: Outcome, valid: Call, *, is_large_request: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with an exception, its message, and what changed before it.

    Args:
        call: The call.
        outcome: Its outcome.
        valid: The valid call that it was made from, whose names a message may contain too.
        is_large_request: Whether memory may run out.
    """
    error = outcome.error
    if error is None or is_callers_own(outcome):
        return
    where = innermost_frame(error.__traceback__)
    message = f"{type(error).__name__}: {str(error)[:300]}"
    if is_out_of_memory(error):
        if not is_large_request:
            yield "unbounded allocation", where, message
    elif type(error) not in ALLOWED:
        yield "internal error", where, message
    elif isinstance(error, AttributeError) and error.name is not None:
        if error.name not in str(error) or not _is_given(error.obj, outcome):
            yield "attribute of no argument", where, message
    elif not (_names_in(call) | _names_in(valid)) & set(re.findall(r"\w+", str(error))):
        yield "message names no argument", where, message
    if outcome.invocation is not None:
        changed = outcome.invocation.converter.tracker.changed(frozenset())
        if changed is not None:
            yield "changed after an exception", where, f"{changed.line}; {message}"


def check_result(
    contract: Contract, expected: Outcome, got: Outcome, changed: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield a finding if a result differs from `reference`'s, or a read-only argument changed."""
    try:
        difference = difference_in(contract, expected, got, changed)
    except Exception:  # noqa: BLE001  # an object raises when it is compared
        difference = None
    if difference is not None:
        yield "wrong result", path_of(difference.line), difference.line
    yield from check_unchanged(contract, got)


def check_unchanged(contract: Contract, got: Outcome) -> Iterator[Finding]:
    """Yield a finding if an argument changed that the function may not write."""
    if got.invocation is not None:
        changed = got.invocation.converter.tracker.changed(contract.changes)
        if changed is not None:
            yield "changed an input", path_of(changed.line), changed.line


def check_twins(
    contract: Contract,
    expected: Outcome,
    got: Outcome,
    changed: Sequence[str],
    *,
    checked: bool,
    has_one_fault: bool,
    has_hints: bool,
) -> Iterator[Finding]:
    """Yield a finding if the result or the exception of a call differs from `reference`'s.

    Args:
        contract: The contract of the function.
        expected: The outcome of `reference`.
        got: The outcome of `fast`.
        changed: The paths of the values that were replaced.
        checked: Whether `fast` must refuse the calls that `reference` refuses.
        has_one_fault: Whether both must raise the same class.
        has_hints: Whether the call has hints, which only `fast` takes. It may refuse them, and
            trusts them without checks.
    """
    ours, theirs = expected.error, got.error
    if is_callers_own(expected) or is_callers_own(got):
        return
    if ours is None and theirs is None:
        if checked or not has_hints:
            yield from check_result(contract, expected, got, changed)
        else:
            yield from check_unchanged(contract, got)
    elif ours is None and theirs is not None:
        if not has_hints and not is_out_of_memory(theirs):
            where = innermost_frame(theirs.__traceback__)
            yield "refused what reference accepts", where, f"{type(theirs).__name__}: {theirs}"
    elif ours is not None and theirs is None:
        if checked and is_refusal(expected):
            where = innermost_frame(ours.__traceback__)
            yield "accepted what reference refuses", where, f"{type(ours).__name__}: {ours}"
    elif checked and has_one_fault and not has_hints and type(theirs) in ALLOWED - {type(ours)}:
        where = innermost_frame(theirs.__traceback__ if theirs else None)
        message = f"{type(theirs).__name__}: {theirs}; reference: {type(ours).__name__}: {ours}"
        yield "another class than reference", where, message


def is_callers_own(outcome: Outcome) -> bool:
    """Return whether a caller's object, a drawn backend or a hostile object, raised the exception.

    Also true if the arguments could not be copied, so that no call was made.
    """
    error = outcome.error
    if error is None:
        return False
    if isinstance(error, HostilityError) or outcome.invocation is None:
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and CALLERS_FILES.search(frames[-1].filename) is not None


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception of Python, NumPy or torch reports that memory ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in text for words in ("allocate memory", "out of memory", "bad_alloc"))
    )


def is_refusal(outcome: Outcome) -> bool:
    """Return whether a `raise` of `reference` raised the exception, and not Python or NumPy."""
    error = outcome.error
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return (
        bool(frames)
        and "/reference/" in frames[-1].filename
        and (frames[-1].line or "").lstrip().startswith(("raise", 'f"', ")"))
    )


def path_of(line: str) -> str:
    """Return the path of a difference without indices, to group differences.

    >>> path_of("result[2].seq_lens[5] = 1, but should be 2")
    'result[].seq_lens[]'
    """
    return re.sub(r"\[[^\]]*\]", "[]", line.split(" = ", maxsplit=1)[0])


def _names_in(call: Call) -> set[str]:
    """Return the names in a call that an error message may contain."""
    found: set[str] = set()
    for site in sites_of(call):
        found.update(re.findall(r"\w+", site.path))
        if isinstance(site.value, str):
            found.add(site.value)
            found.update(re.findall(r"\w+", site.value))
    try:
        function = REFERENCE.lookup(call.function)
        found.update(function.__code__.co_varnames[: function.__code__.co_argcount + 9])
    except (
        AttributeError,
        Absent,
    ):  # a class, or one of `SCENARIOS`: the call has all its arguments
        pass
    return found - {"self"}


def _is_given(owner: object, outcome: Outcome) -> bool:
    """Return whether an object is in the arguments of a call, at any depth."""
    assert outcome.invocation is not None  # noqa: S101  # see `is_callers_own`
    seen: set[int] = set()
    left: list[Any] = [outcome.invocation.arguments, outcome.invocation.hints]
    while left:
        value = left.pop()
        if value is owner:
            return True
        if id(value) in seen or len(seen) > 10_000:
            continue
        seen.add(id(value))
        left += children(value).values()
        if hasattr(type(value), "__dict__") and not isinstance(value, type):
            left += getattr(value, "__dict__", {}).values()
    return False
