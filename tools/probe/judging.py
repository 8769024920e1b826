"""Holds what a call did against the promises."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.absent import Absent
from conformance.contracts import Call, Contract
from tools.probe.calling import MEANING, Outcome, compare
from tools.probe.sites import sites_of
from tools.probe.strange_objects import HostilityError
from tools.probe.violation import innermost_frame

ALLOWED: Final = frozenset(
    {ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError}
)
"""The classes of exceptions of spec 00."""

MOST_SECONDS: Final = 2.0
MOST_GROWTH_BYTES: Final = 1 << 28
"""What a call on small input may take, of processor time and of memory."""

Finding = tuple[str, str, str]
"""The kind of a violation, where it was, and what happened."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether memory ran out, in the words of Python, NumPy or torch."""
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    )


def names_in(call: Call) -> set[str]:
    """Return the words by which a message can name what is wrong with a call."""
    found: set[str] = set()
    for site in sites_of(call):
        found.update(re.findall(r"\w+", site.path))
        if isinstance(site.value, str):
            found.add(site.value)
            found.update(re.findall(r"\w+", site.value))
    try:
        function = MEANING.lookup(call.function)
        found.update(function.__code__.co_varnames[: function.__code__.co_argcount + 9])
    except (Exception, Absent):  # noqa: BLE001, S110  # a class or a play: all are given
        pass
    return found - {"self"}


def is_own(error: BaseException | None) -> bool:
    """Tell whether an exception is the caller's own: out of a hostile object, or a drawn backend."""
    if error is None or isinstance(error, HostilityError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename.endswith("probe/calling.py"):  # poisoned `np.empty`
        return False
    return "/conformance/" in frames[-1].filename or "/probe/" in frames[-1].filename


def judge_error(call: Call, outcome: Outcome, valid: Call) -> Iterator[Finding]:
    """Yield what is wrong with an exception, its message, and what it left behind.

    Args:
        call: what was called.
        outcome: what came of it.
        valid: the valid call that it was made from, whose names a message may name too.
    """
    error = outcome.error
    if error is None or is_own(error):
        return
    where = innermost_frame(error.__traceback__)
    told = f"{type(error).__name__}: {str(error)[:300]}"
    if is_out_of_memory(error):
        yield "unbounded allocation", where, told
    elif type(error) not in ALLOWED:
        yield "internal error", where, told
    elif isinstance(error, AttributeError):
        pass  # the message names the attribute that was read
    elif not (names_in(call) | names_in(valid)) & set(re.findall(r"\w+", str(error))):
        yield "message names no argument", where, told
    if outcome.side is not None:
        changed = outcome.side.carrier.changed(frozenset())
        if changed is not None:
            yield "changed after an exception", where, f"{changed.line}; {told}"


def judge_resources(outcome: Outcome) -> Iterator[Finding]:
    """Yield whether a call took too long or too much memory."""
    if outcome.seconds > MOST_SECONDS:
        yield "slow", "", f"took {outcome.seconds:.1f} s of processor time"
    if outcome.grown_bytes > MOST_GROWTH_BYTES:
        yield "unbounded allocation", "", f"grew by {outcome.grown_bytes >> 20} MiB"


def judge_result(
    contract: Contract, wanted: Outcome, got: Outcome, changed: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield how a result differs from the meaning, and what changed that may not."""
    try:
        difference = compare(contract, wanted, got, changed)
    except Exception:  # noqa: BLE001  # an object that does not want to be compared
        difference = None
    if difference is not None:
        yield "wrong result", path_of(difference), difference
    yield from judge_unchanged(contract, got)


def judge_unchanged(contract: Contract, got: Outcome) -> Iterator[Finding]:
    """Yield what changed that may not."""
    if got.side is not None:
        changed = got.side.carrier.changed(contract.changes)
        if changed is not None:
            yield "changed an input", path_of(changed.line), changed.line


def path_of(line: str) -> str:
    """Return where a difference is, without indices: what tells two differences apart.

    >>> path_of("result[2].seq_lens[5] = 1, but should be 2")
    'result[].seq_lens[]'
    """
    return re.sub(r"\[[^\]]*\]", "[]", line.split(" = ", maxsplit=1)[0])


def is_refusal(outcome: Outcome) -> bool:
    """Tell whether an exception is the twin's own words, not Python's about a strange object."""
    error = outcome.error
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return bool(frames) and (frames[-1].line or "").lstrip().startswith(("raise", 'f"', ")"))


def judge_twins(
    contract: Contract,
    wanted: Outcome,
    got: Outcome,
    changed: Sequence[str],
    *,
    checked: bool,
    has_one_fault: bool,
) -> Iterator[Finding]:
    """Yield how a call ended otherwise than `reference`'s.

    Args:
        contract: what is stated about the function.
        wanted: what `reference` did.
        got: what `fast` did.
        changed: the places of the call that were made strange.
        checked: whether `fast` must refuse what `reference` does.
        has_one_fault: whether both must do so with the same class.
    """
    ours, theirs = wanted.error, got.error
    if any(error is not None and is_own(error) for error in (ours, theirs)):
        return
    if ours is None and theirs is None:
        yield from judge_result(contract, wanted, got, changed)
    elif ours is None and theirs is not None and not is_out_of_memory(theirs):
        where = innermost_frame(theirs.__traceback__)
        yield "refused what reference accepts", where, f"{type(theirs).__name__}: {theirs}"
    elif theirs is None and checked and ours is not None and is_refusal(wanted):
        where = innermost_frame(ours.__traceback__ if ours else None)
        yield "accepted what reference refuses", where, f"{type(ours).__name__}: {ours}"
    elif (
        type(ours) is not type(theirs)
        and checked
        and ours is not None
        and has_one_fault
        and type(theirs) in ALLOWED
    ):
        where = innermost_frame(theirs.__traceback__ if theirs else None)
        said = f"{type(theirs).__name__}: {theirs}"
        yield "another class than reference", where, f"{said}; {type(ours).__name__}: {ours}"
