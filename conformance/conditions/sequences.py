"""Calls in sequence: other batches in the same memory, refusals, and results that are held.

What an implementation remembers of earlier calls (answers, by address, shape or sum of their
arguments; buffers that results lie in) must not show.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from conformance.calls import Call
from conformance.conditions.known_answer import KnownAnswer, copied_answer
from conformance.conditions.neighbours import Contents, neighbours
from conformance.contracts import Contract
from conformance.targets import RAISED, REFERENCE, Target

NUM_NEIGHBOURS = 2
"""Other batches before the call that is compared."""

NUM_HELD = 1100
"""Results that are held at a time: more than rings and pools of buffers have."""


def check_other_batches(contract: Contract, target: Target, call: Call) -> None:
    """Raise `Mismatch` where other batches in the same memory change an answer.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
    """
    __tracebackhide__ = True
    expected = KnownAnswer.of(contract, call)
    invocation = expected.invocation(target)
    for contents, other in islice(_other_batches(contract, call), NUM_NEIGHBOURS):
        expected.check(invocation, "before other batches in the same memory")
        with invocation.converter.tracker.holding(contents):
            other.check(invocation, "after another batch in the same memory")
        expected.check(invocation, "after another batch in the same memory")


def has_other_batches(contract: Contract, call: Call) -> bool:
    """Return whether the entries of a call's arrays make another valid call in another order."""
    return next(_other_batches(contract, call), None) is not None


def _other_batches(contract: Contract, call: Call) -> Iterator[tuple[Contents, KnownAnswer]]:
    """Yield contents of a call's memory that make another valid call with another answer."""
    first = KnownAnswer.of(contract, call)
    invocation = first.invocation(REFERENCE)
    for contents in neighbours(invocation.call, contract.changes):
        with invocation.converter.tracker.holding(contents):
            made = dataclasses.replace(call, arguments=copy.deepcopy(invocation.arguments))
            try:
                answer = copied_answer(contract, invocation.run())
            except RAISED:  # no valid call
                continue
        yield contents, KnownAnswer(contract, made, answer)


def check_after_refusals(contract: Contract, target: Target, call: Call) -> None:
    """Raise `Mismatch` where a refused call changes the answer of the next one.

    One call is refused for each argument.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
    """
    __tracebackhide__ = True
    expected = KnownAnswer.of(contract, call)
    seen: set[str] = set()
    for invalid in contract.invalid_inputs:
        if invalid.is_value or invalid.is_hint or invalid.argument in seen:
            continue
        bad = invalid.change(expected.call)
        if bad is None:
            continue
        seen.add(invalid.argument)
        invocation = expected.invocation(target)
        with invocation.with_call(bad) as refused, suppress(*RAISED):
            refused.run()
        expected.check(invocation, f"after a refused call ({invalid.name})")


def check_held_results(contract: Contract, target: Target, call: Call) -> None:
    """Raise `Mismatch` where later calls change results that the caller holds.

    Results that lie in the caller's own memory are not looked at.

    Args:
        contract: The contract of the function.
        target: What is called.
        call: A valid call.
    """
    __tracebackhide__ = True
    if contract.aliases or contract.changes or contract.compares_views:
        return
    expected = KnownAnswer.of(contract, call)
    invocation = expected.invocation(target)
    first = expected.check(invocation, "")
    held = []
    for contents, other in islice(_other_batches(contract, call), 1):
        with invocation.converter.tracker.holding(contents):
            held = [invocation.run() for _ in range(NUM_HELD)]
            other.compare(held[-1], target, f"called {NUM_HELD} times, the last time")
    expected.compare(first, target, f"held while {len(held)} other batches are computed")
