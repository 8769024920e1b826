"""Refusals: one place of a valid call is changed, and `reference` says what must happen then.

What `reference` refuses, the target must refuse: the same class, naming the same argument, and for
`fast` in the same words. What `reference` answers, the target must answer equally.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conformance.adapters import Adapter, Unsupported
from conformance.adapters.implementations import FAST
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Operation, Outcome, attempt
from conformance.harness.pair import OBJECTS, Found, Pair
from conformance.harness.process import unchanged
from conformance.harness.story import Difference, Story, Verdict
from conformance.harness.values import (
    GONE,
    Drawn,
    Path,
    copied,
    fields_of,
    get,
    is_object,
    parts,
    places,
    put,
)

if TYPE_CHECKING:
    from conformance.harness.targets import Target

EXTREMES: Final = (-1, -1, 0, 1, 2**31 - 1, -(2**31))


def invalid(
    contract: Contract,
    arguments: Arguments,
    rng: random.Random,
    adapter: Adapter = FAST.adapter,
) -> tuple[Path, Arguments, bool] | None:
    """Change one place of a valid call; return its path, the arguments, and whether it is loose.

    Fields that an implementation lacks are not changed.

    Every fifth time it is one of the contract's `specials`, whose path is empty. A change is loose
    if it may violate several preconditions, of which either twin may name another: of a length, of
    a list, of several places.
    """
    if contract.specials and rng.random() < 0.2:
        special = rng.choice(contract.specials)(copied(arguments), rng)
        if special is not None:
            return (), special, True
    found = [path for path, value in places(arguments) if path and not isinstance(value, Device)]
    for _ in range(5 if found else 0):
        path = rng.choice(found)
        if not adapter.lacks.isdisjoint(path):
            continue
        value = get(arguments, path)
        options = list(_near(value, rng))
        parent = get(arguments, path[:-1])
        if isinstance(parent, Operation) and path[-1] != "arguments":
            continue
        if is_object(parent) and not isinstance(parent, Drawn) and path[-1] not in contract.unread:
            options += [GONE] * (len(options) // 6)
        if isinstance(parent, list) and rng.random() < 0.2:
            options = [entry for entry in parent if entry is not value] or options
        new = rng.choice(options)
        whole = arguments
        if (
            new is GONE and contract.takes_own_objects and adapter.takes_own_objects
        ):  # a dataclass may have a default
            whole = OBJECTS["own classes"](arguments)
        made = attempt(put, whole, path, new)
        affordable = attempt(contract.is_affordable, made.value) if made.error is None else made
        if made.error is None and (affordable.error is not None or affordable.value):
            is_loose = bool({*path} & contract.loose) or isinstance(value, list | tuple | dict)
            is_loose = is_loose or np.shape(new) != np.shape(value)
            return path, _with_copies(made.value, path, value, rng), is_loose
    return None


def _with_copies(arguments: Arguments, path: Path, old: Any, rng: random.Random) -> Arguments:
    """Change a copy of the value in a field of the same name, too: `seq_lens`, `seq_lens_cpu`."""
    name = path[-1]
    if not isinstance(name, str) or rng.random() < 0.3:
        return arguments
    twin = name.removesuffix("_cpu") if name.endswith("_cpu") else f"{name}_cpu"
    owner = get(arguments, path[:-1])
    siblings = dict(parts(owner))
    if twin not in siblings or not isinstance(old, np.ndarray) or name not in siblings:
        return arguments
    changed: Arguments = put(arguments, (*path[:-1], twin), copied(siblings[name]))
    return changed


def _near(value: Any, rng: random.Random) -> Iterator[Any]:  # noqa: C901  # a table of types
    """Yield values near a valid one: other types, dtypes, axes, lengths and elements."""
    yield None
    if isinstance(value, bool | np.bool_):
        yield from (int(value), not value, np.bool_(value), "x", 1.0)
    elif isinstance(value, int | np.integer):
        number = int(value)
        yield from (number - 1, number + 1, -1, 0, -number, 2 * number)
        yield from (2**31, 2**31, 2**31 - 1, 2**63, 2**64, -(2**40))
        yield from (float(number) if abs(number) < 2**53 else 0.5, number + 0.5, True, np.True_)
        yield from (str(number), np.float64(number % 1000), [number], np.int64(number % 2**31))
    elif isinstance(value, float):
        yield from (float("nan"), -value, value + 1.0, float("inf"), "x")
    elif isinstance(value, np.ndarray):
        yield from _arrays_near(value, rng)
    elif isinstance(value, np.dtype):
        yield from (*map(np.dtype, (np.int32, np.float32, np.float64, np.int8)), "x", 4)
    elif isinstance(value, str):
        yield from (f"{value}x", "", 3)
    elif isinstance(value, list | tuple):
        entries = list(value)
        yield from (entries[:-1], entries + entries[-1:], entries[::-1])
        yield from ([*entries[:-1], None][: len(entries)], dict(enumerate(entries)))
        yield from (tuple(entries), list(entries), 3, "ab", np.array([1]))
    elif isinstance(value, dict):
        yield from (dict(list(value.items())[1:]), list(value), 3)
    elif isinstance(value, slice):
        yield from (0, (value.start, value.stop))
        for start, stop, step in _slices_near(value):
            yield slice(start, stop, step)
    elif value is None:
        yield from (0, 1, True, "x", -1, 2**31)
    elif is_object(value):
        # The class of a factory is ours, and a call may change it.
        yield from (3, "x", fields_of(value), *[type(value)] * (not isinstance(value, Drawn)))


def _slices_near(value: slice) -> Iterator[tuple[Any, Any, Any]]:
    start, stop = value.start, value.stop
    yield from ((start, stop, 1), (start, stop, 2), (start, stop, -1), (None, stop, None))
    yield from ((start, None, None), (start, stop + 1, None), (start, stop - 1, None))
    yield from ((start + 1, stop, None), (start - 1, stop, None), (stop, start, None))
    yield from ((start, start, None), (start, float(stop), None), (bool(start), stop, None))
    yield from ((start, stop, True), (start, stop, 1.0), (start, stop, -(2**40)), (-1, 0, None))
    yield from ((start, bool(stop), None), (start - 1, stop - 1, None), (start + 1, stop + 1, None))


def _arrays_near(value: np.ndarray[Any, Any], rng: random.Random) -> Iterator[Any]:
    yield from (value.tolist(), value[None].copy(), value[..., None].copy(), "x")
    yield np.zeros((), value.dtype)
    for dtype in (np.int16, np.int32, np.int64, np.float32, np.bool_, np.uint8, np.int8):
        if value.dtype != dtype and value.dtype.kind not in "cU":
            with np.errstate(all="ignore"):
                yield value.astype(dtype)
    if value.ndim > 1 and len(value):
        yield value[0].copy()
    if value.ndim:
        yield from (value[:-1].copy(), value[1:].copy(), value[:0].copy(), value[..., :-1].copy())
        yield from (np.concatenate([value, value[-1:]]), value[::-1].copy())
    if value.size and value.dtype.kind in "iu":
        for _ in range(12):
            changed = value.copy()
            flat = changed.reshape(-1)
            at = rng.choice((0, -1, rng.randrange(value.size)))
            new = rng.choice((*EXTREMES, int(flat[at]) + 1, int(flat[at]) - 1))
            with np.errstate(all="ignore"):
                flat[at] = np.array(new).astype(value.dtype)
            yield changed


REFERENCE_SECONDS: Final = 0.2
"""The processor time that `reference` may take for a changed call. Drawn calls take less; a
changed one may be valid, and have 2**31 results."""


class TooLong(BaseException):  # no error of the program
    """`reference` takes too long."""


@contextlib.contextmanager
def time_of_cpu(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in a block that takes more processor time."""

    def stop(*_: object) -> None:
        raise TooLong

    def tell(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, TooLong):
            hook(unraisable)

    before, hook = signal.signal(signal.SIGVTALRM, stop), sys.unraisablehook
    sys.unraisablehook = tell
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.05)  # again: a callback may swallow one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        sys.unraisablehook = hook


def check_refusal(contract: Contract, target: Target, story: Story) -> None:
    """Raise `Found` unless a changed call ends as in `reference`, with and without checks."""
    try:
        pair = Pair(contract, target, story.arguments)
    except Found as found:  # its classes refuse it
        raise Unsupported(f"invalid objects: {found.difference.got}") from None
    before = pair.memory.snapshot()
    try:
        with time_of_cpu(REFERENCE_SECONDS):
            wanted = pair.expected()
    except TooLong:
        return  # a valid call of a huge size, of which the example is not
    has_effects = contract.run is not None or contract.has_objects
    if isinstance(wanted.error, MemoryError) or (has_effects and wanted.effects is None):
        return  # or a factory refuses what was changed
    if wanted.error is not None and not target.lacks.isdisjoint(
        re.findall(r"\w+", str(wanted.error))
    ):
        return  # what it does not have cannot be wrong
    with target.running(checked=True), unchanged(slow=True) as settings:
        got = pair.outcome()
    for difference in settings:
        raise Found(difference)
    _compare(pair, story, wanted, got, before)
    if wanted.error is None or not target.has_checks:
        return
    pair = Pair(contract, target, story.arguments)
    before = pair.memory.snapshot()
    with target.running(checked=False):
        got = pair.outcome()
    written = {placed.name for placed in pair.memory.placed} & contract.written
    is_cheap = not _is_of_elements(contract, wanted.error)
    where = "the call with checks off"
    if is_cheap and not _are_of_one_class(target, wanted.error, got.error):
        raise Found(_difference(where, got, wanted.error))
    change = pair.memory.changed(before)
    fault = getattr(got.error, "kind", None)
    is_race = fault is not None and fault.name == "RACE"
    if fault is not None and not is_race:  # a kernel leaves its memory
        words = "a fault of a kernel"
        raise Found(Difference(where, got.error, wanted.error, words, Verdict.ROBUSTNESS))
    may_write = got.error is None or is_race
    if change is None or not (may_write and change.where in written):
        _check_unchanged(change)


def _compare(pair: Pair, story: Story, wanted: Outcome, got: Outcome, before: Any) -> None:
    if wanted.error is None:
        if got.error is not None:
            raise Found(Difference("the call", got.error, wanted.value, "raises"))
        difference = pair.comparison.difference(wanted.value, got.value)
        difference = difference or pair.effect(wanted, got) or pair.memory.changed(before)
        if difference is not None:
            raise Found(difference)
        return
    if got.error is None or not _are_of_one_class(pair.target, wanted.error, got.error):
        raise Found(_difference("the call", got, wanted.error))
    _check_unchanged(pair.memory.changed(before) or pair.effect(wanted, got))
    path = story.changed or ()
    if not agree(pair.target, wanted.error, got.error, path, is_loose=story.is_loose):
        kind = "wrong message"
        raise Found(Difference("the call", got.error, wanted.error, kind, Verdict.OTHER))


def _are_of_one_class(target: Target, wanted: BaseException, got: BaseException | None) -> bool:
    if isinstance(wanted, AttributeError) and not target.is_fast:
        return got is not None  # of an object without an attribute, a stranger may say anything
    return type(got) is type(wanted)


def _check_unchanged(change: Difference | None) -> None:
    if change is not None:  # of an invalid call, so no wrong answer
        raise Found(dataclasses.replace(change, verdict=Verdict.ROBUSTNESS))


def _difference(where: str, got: Outcome, wanted: BaseException) -> Difference:
    if got.error is not None:
        return Difference(where, got.error, wanted, "wrong exception", Verdict.OTHER)
    return Difference(where, got.value, wanted, "no refusal", Verdict.MISSING_REFUSAL)


def _is_of_elements(contract: Contract, error: BaseException) -> bool:
    """Return whether only checked mode sees what is wrong: the values of elements."""
    text = str(error)
    names_an_element = re.search(r"\w\[\d[\d, ]*\] (is|decreases|needs)", text) is not None
    return names_an_element or re.search(contract.checked_only, text) is not None


WORDS: Final = (
    (re.compile(r"\b(NumPy array|torch tensor|ndarray|Tensor)\b"), "array"),
    (re.compile(r"\b(torch\.|NumPy dtype |numpy\.|(reference|fast)\.\w+\.)"), ""),
    (re.compile(r" at 0x[0-9a-f]+"), ""),
)


def agree(
    target: Target, wanted: BaseException, got: BaseException, path: Path, *, is_loose: bool
) -> bool:
    """Return whether two exceptions of one class say the same: for `fast` in the same words."""
    if is_loose or isinstance(wanted, AttributeError):
        return True
    mine, theirs = str(wanted), str(got)
    if target.is_fast:
        for pattern, word in WORDS:
            mine, theirs = pattern.sub(word, mine), pattern.sub(word, theirs)
        return mine == theirs
    names = {key for key in path if isinstance(key, str)} & set(re.findall(r"\w+", mine))
    return not names or bool(names & set(re.findall(r"\w+", theirs)))
