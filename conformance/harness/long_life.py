"""Many calls, once for a function: they all give the same answer, and keep no memory."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
import sys
import time
from typing import Any, Final

from conformance.harness import limits
from conformance.harness.conditions import rewrites
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import attempt, possible
from conformance.harness.pair import Found, Pair
from conformance.harness.story import Difference, Failure, Story, Verdict
from conformance.harness.targets import Target
from conformance.harness.values import arrays, copied, objects


def check_life(contract: Contract, target: Target, stories: list[Story]) -> None:
    """Make a small call very often, and calls of other contents, whose memory must not be kept."""

    def size(story: Story) -> tuple[int, int]:
        in_bytes = sum(array.nbytes for array in arrays(story.arguments))
        return in_bytes, sum(1 for _ in objects(story.arguments))

    stories = [
        dataclasses.replace(one, arguments=possible(target, contract, one.arguments))
        for one in stories
    ]
    by_size = sorted(stories, key=size)
    if not by_size:
        return
    last = by_size[0]
    try:
        with target.running():
            for last in stories:
                with limits.call(target, last):
                    Pair(contract, target, last.arguments).call()
            last = by_size[0]
            with limits.call(target, last):
                _check_long_life(contract, target, last.arguments)
            large = [by_size[len(by_size) * 9 // 10]]
            for last in large if contract.has_objects else [by_size[len(by_size) // 2], *large]:
                with limits.call(target, last):
                    _check_growth(contract, target, last.arguments)
    except Found as found:
        words = "many calls"
        raise Failure(last, target.name, found.difference, words) from None


def _check_growth(contract: Contract, target: Target, arguments: Arguments) -> None:
    """Raise `Found` if memory grows with each call of other contents, in Python's heap or outside.

    A target that takes long is not checked.
    """
    size = sum(array.nbytes for array in arrays(arguments))

    def used_after(times: int) -> tuple[int, int]:
        for k in range(times):
            varied = _varied(arguments, k) if target.implementation.adapter.validates else arguments
            pair = Pair(contract, target, varied)
            pair.outcome()
        del pair, varied
        gc.collect()
        return sys.getallocatedblocks(), _malloced()

    begin = time.monotonic()
    used_after(30)
    if time.monotonic() - begin > (0.2 if contract.has_objects else 1.0):
        return
    before = used_after(30)
    blocks, memory = (new - old for new, old in zip(used_after(100), before, strict=True))
    if blocks > 75 or memory > 100 * max(512, size // 4):
        grown = f"{blocks} objects and {memory} bytes more after 100 calls"
        kind = "keeps memory"
        raise Found(Difference("memory", grown, "as before", kind, Verdict.ROBUSTNESS))


def _varied(arguments: Arguments, number: int) -> Arguments:
    """Return arguments of which an array has other contents for each number, valid or not."""
    made: Arguments = copied(arguments)
    found = [array for array in arrays(made) if array.size and array.dtype.kind in "iu"]
    if found:
        array = found[number % len(found)]
        array.reshape(-1)[-1] ^= number % (64 if array.itemsize == 1 else 2**14)
    return made


@functools.cache
def _mallinfo() -> Any:
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(name, ctypes.c_size_t) for name in names.split()]
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
    return function


def _malloced() -> int:
    """Return the bytes that glibc's `malloc` has given out; 0 for another library."""
    info = _mallinfo()() if _mallinfo() else None
    return int(info.uordblks + info.hblkhd) if info else 0


LONG_LIFE: Final = 66_000
"""Calls of a long life: more than 16 bits count."""


def _check_long_life(contract: Contract, target: Target, arguments: Arguments) -> None:
    """Raise `Found` if a small call, made very often, gives another answer or keeps memory.

    It ends after three seconds; after a third of one if each call makes objects.
    """
    if rewrites(contract, arguments):
        return
    pair = Pair(contract, target, arguments)
    wanted = pair.call()
    call = pair.prepared()
    end = time.monotonic() + (0.3 if contract.has_objects else 3.0)
    used = 0
    for k in range(LONG_LIFE):
        got = attempt(call)
        if got.error is not None:
            raise Found(Difference(f"call {k + 2:,}", got.error, wanted.value, "raises"))
        if k & (k + 1) == 0 or (k % 997 == 0 and time.monotonic() > end):
            pair.call(wanted=wanted)
            pair.held.clear()
            used = used or (k > LONG_LIFE // 10 and _malloced())
            if time.monotonic() > end:
                break
    pair.call(wanted=wanted)
    if k == LONG_LIFE - 1 and _malloced() - used > k:
        grown = f"{_malloced() - used} bytes more after {k} calls"
        raise Found(Difference("memory", grown, "as before", "keeps memory", Verdict.ROBUSTNESS))
