"""Lifetimes: a function keeps nothing alive that was passed to it, or that it returned."""

from __future__ import annotations

import enum
import gc
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.comparison import Difference, Verdict
from conformance.conditions.known_answer import KnownAnswer
from conformance.report import Mismatch
from conformance.targets import Target
from conformance.values import is_immutable, walk

PERMANENT: Final = (type, FunctionType, enum.Enum)
"""Types of objects that belong to a module, so that no call frees them."""


def check_lifetimes(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if something outlives a call that nothing but the implementation has.

    Args:
        expected: A valid call, with its answer.
        target: What is called.
    """
    __tracebackhide__ = True
    watched = _call_and_forget(expected, target)
    for generation in (1, 2):  # the youngest objects, which is cheap; all of them before a report
        if any(is_alive() for _, is_alive in watched):
            gc.collect(generation)
    for path, is_alive in watched:
        if is_alive():
            wanted = "freed when the caller drops it"
            difference = Difference(Verdict.IDENTITY, path, None, "kept alive", wanted)
            raise Mismatch(expected.call, target.name, difference)


def _call_and_forget(expected: KnownAnswer, target: Target) -> list[tuple[str, Any]]:
    invocation = expected.invocation(target)
    result = invocation.run()
    values = [*invocation.arguments.items(), ("result", result)]
    return [watched for path, value in values for watched in _watched(value, path)]


def _watched(value: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays and objects of a value, each with a function that says if it is alive.

    Immutable objects are left out: an implementation may make each once and keep it.
    """
    for where, part in walk(value, path):
        if isinstance(part, torch.Tensor):
            yield where, _storage_reference(part)
        elif isinstance(part, PERMANENT) or is_immutable(part):
            continue
        elif type(part).__weakrefoffset__:
            yield where, weakref.ref(part)


def _storage_reference(tensor: torch.Tensor) -> Any:
    """Return a function that says whether the memory of a tensor is still held."""
    storage: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # torch's
    return lambda: not storage.expired()
