"""Lifetimes: a function keeps nothing alive that was passed to it, that it returned or started."""

from __future__ import annotations

import enum
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.arrays.guard_bands import Array
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.conditions.sequences import refused_calls
from conformance.execution.invocations import Invocation
from conformance.messages.mismatch import KEPT_ALIVE, Mismatch
from conformance.targets.target import RAISED, Target
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import (
    PLAIN,
    has_entries,
    is_array,
    is_immutable,
    is_reference_object,
    walk,
)

PERMANENT: Final = (type, FunctionType, enum.Enum)
"""Types of objects that belong to a module, so that no call frees them."""

NUM_REPEATED: Final = 64
"""Calls whose memory growth is measured, after as many calls that fill caches."""

MAX_POOL: Final = 130
"""Threads that an implementation may keep: a pool has one for each core, or several."""

FREED: Final = "with arguments and results freed afterwards"
FREED_AFTER_REFUSAL: Final = "with arguments freed after a refusal"
NO_GROWTH: Final = "with no memory kept by repeated calls"
NO_THREADS: Final = "with no thread left by each call"


def lifetime_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield scenarios that find leaks of arguments, results, memory and threads."""
    yield Scenario(FREED, partial(check_lifetimes, expected))
    refused = [bad for _, bad in refused_calls(expected, is_value=False)]
    if refused:
        yield Scenario(FREED_AFTER_REFUSAL, partial(_check_refusals, refused))
    if _takes_data_only(expected):
        yield Scenario(NO_GROWTH, partial(_check_growth, expected))
    yield Scenario(NO_THREADS, partial(_check_threads, expected))


def _takes_data_only(expected: KnownAnswer) -> bool:
    """Return whether a call takes only plain data and writes none of it.

    A caller's own objects may record each use of them, and so keep values alive.
    """
    writes = expected.contract.changes & expected.call.arguments.keys()
    return not writes and all(_is_data(part) for _, part in walk(expected.call.arguments, ""))


def _is_data(value: object) -> bool:
    is_plain = type(value) in PLAIN or isinstance(value, np.dtype | slice | enum.Enum | type)
    return is_plain or is_array(value) or has_entries(value) or is_reference_object(value)


def check_lifetimes(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if the implementation keeps an argument or a result alive.

    Args:
        expected: A valid call, with its answer.
        target: The target under test.
    """
    __tracebackhide__ = True
    _check_freed(expected.call, target, _call_and_forget(expected, target))


def _check_refusals(refused: list[Call], target: Target) -> None:
    """Raise `Mismatch` if arguments of a refused call stay alive, as in a stored exception."""
    __tracebackhide__ = True
    for bad in refused if target.validates else ():
        invocation = Invocation(target, bad)
        watched = _watched_in(invocation.arguments.items())
        with suppress(*RAISED):
            invocation.run()
        del invocation
        _check_freed(bad, target, watched)


def _check_freed(call: Call, target: Target, watched: list[tuple[str, Callable[[], bool]]]) -> None:
    __tracebackhide__ = True
    _wait(target)
    for generation in (1, 2):  # first young objects, which is cheap; all before a report
        if any(is_alive() for _, is_alive in watched):
            gc.collect(generation)
    for path, is_alive in watched:
        if is_alive():
            raise _kept_alive(call, target, path)


def _wait(target: Target) -> None:
    """Synchronise with the device, which may keep memory alive until its work is done."""
    if target.device == "cuda":
        torch.cuda.synchronize()


def _kept_alive(call: Call, target: Target, path: str) -> Mismatch:
    wanted = "freed when the caller drops it"
    return Mismatch(call, target.name, Difference(Verdict.IDENTITY, path, None, KEPT_ALIVE, wanted))


def _call_and_forget(expected: KnownAnswer, target: Target) -> list[tuple[str, Callable[[], bool]]]:
    """Make a call, and return functions that report whether its arguments and result are alive.

    Python cannot watch lists, dicts and sets. Those of the arguments have no more references after
    the call than before it.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    containers = [
        (path, part)
        for name, value in invocation.arguments.items()
        for path, part in walk(value, name)
        if isinstance(part, list | dict | set)
    ]
    before = [sys.getrefcount(part) for _, part in containers]
    result = invocation.run()
    watched = _watched_in([*invocation.arguments.items(), ("result", result)])
    del result
    if _takes_data_only(expected):
        for (path, part), number in zip(containers, before, strict=True):
            if sys.getrefcount(part) > number and gc.collect() and sys.getrefcount(part) > number:
                raise _kept_alive(expected.call, target, path)
    return watched


def _watched_in(values: Any) -> list[tuple[str, Callable[[], bool]]]:
    return [watched for path, value in values for watched in _watched(value, path)]


def _watched(value: object, path: str) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the arrays and objects of a value, each with a function that tests if it is alive.

    Immutable objects are left out: an implementation may make each once and keep it.
    """
    for where, part in walk(value, path):
        if isinstance(part, torch.Tensor):
            yield where, _storage_reference(part)
        elif isinstance(part, np.ndarray):
            yield where, _object_reference(_owner_of(part))
        elif isinstance(part, PERMANENT) or is_immutable(part):
            continue
        elif type(part).__weakrefoffset__:
            yield where, _object_reference(part)


def _object_reference(value: object) -> Callable[[], bool]:
    """Return a function that tests whether an object is alive."""
    reference = weakref.ref(value)
    return lambda: reference() is not None


def _storage_reference(tensor: torch.Tensor) -> Callable[[], bool]:
    """Return a function that tests whether the storage of a tensor is alive."""
    storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
    return lambda: not storage.expired()


def _owner_of(array: Array) -> Array:
    """Return the array that all views of an array's memory keep alive."""
    base = array.base.obj if isinstance(array.base, memoryview) else array.base
    return _owner_of(base) if isinstance(base, np.ndarray) else array


def _check_growth(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if each of many equal calls leaves objects behind."""
    __tracebackhide__ = True
    invocation = expected.invocation(target)

    def repeat() -> int:
        before = sys.getallocatedblocks()
        for _ in range(NUM_REPEATED):
            invocation.run()
        _wait(target)
        return sys.getallocatedblocks() - before

    repeat()
    if repeat() < NUM_REPEATED:
        return
    gc.collect()  # reference cycles are no leak
    before = sys.getallocatedblocks()
    repeat()
    gc.collect()
    grown = (sys.getallocatedblocks() - before) / NUM_REPEATED
    if grown >= 1:
        got = f"{grown:.0f} more after each call"
        difference = Difference(Verdict.IDENTITY, "objects in memory", None, got, "the same number")
        raise Mismatch(expected.call, target.name, difference, "called repeatedly")


def _check_threads(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if each call leaves another thread; a thread pool stops growing."""
    __tracebackhide__ = True
    for _ in range(MAX_POOL):
        before = threading.active_count()
        expected.run(expected.invocation(target), "")
        if threading.active_count() <= before:
            return
    got, wanted = "one more after each call", "the same number"
    difference = Difference(Verdict.IDENTITY, "threading.active_count()", None, got, wanted)
    raise Mismatch(expected.call, target.name, difference, "called repeatedly")
