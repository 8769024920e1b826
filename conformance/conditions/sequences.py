"""Calls in sequence: other batches in the same memory, refusals, and results that are held.

What an implementation remembers of earlier calls (answers, by address, shape or sum of their
arguments; buffers that results lie in) must not show.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from conformance.calls import Call, plain
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.neighbours import Contents, neighbours
from conformance.targets import RAISED, REFERENCE, Target
from conformance.values import children, walk

NUM_NEIGHBOURS = 2
"""Other batches before the call that is compared."""

NUM_HELD = 1100
"""Results that are held at a time: more than rings and pools of buffers have."""


def check_other_batches(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` where other batches in the same memory change an answer.

    Args:
        expected: A valid call, with its answer.
        target: What is called.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    for contents, other in islice(_other_batches(expected), NUM_NEIGHBOURS):
        expected.check(invocation, "before other batches in the same memory")
        with invocation.converter.tracker.holding(contents):
            other.check(invocation, "after another batch in the same memory")
        expected.check(invocation, "after another batch in the same memory")


def has_other_batches(expected: KnownAnswer) -> bool:
    """Return whether a call's arrays, with their entries in another order, make a valid call."""
    return next(_other_batches(expected), None) is not None


def _other_batches(expected: KnownAnswer) -> Iterator[tuple[Contents, KnownAnswer]]:
    """Yield contents of a call's memory that make another valid call; its answer may be equal."""
    contract, invocation = expected.contract, expected.invocation(REFERENCE)
    for contents in neighbours(invocation.call, contract.changes):
        with invocation.converter.tracker.holding(contents):
            # The facts are those of the batch that was drawn.
            made = Call(expected.call.function, copy.deepcopy(invocation.arguments))
            try:
                other = KnownAnswer.of_invocation(contract, invocation, made)
            except RAISED:  # no valid call
                continue
        yield contents, other


def check_after_refusals(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` where a refused call changes the answer of the next one.

    One call is refused for each argument.

    Args:
        expected: A valid call, with its answer.
        target: What is called.
    """
    __tracebackhide__ = True
    if not target.validates:
        return
    seen: set[str] = set()
    for invalid in expected.contract.invalid_inputs:
        if invalid.is_value or invalid.is_hint or invalid.argument in seen:
            continue
        bad = invalid.change(expected.call)
        if bad is None:
            continue
        seen.add(invalid.argument)
        invocation, is_refused = expected.invocation(target), True
        with invocation.with_call(bad) as refused, suppress(*RAISED):
            refused.run()
            is_refused = False  # a declared deviation, or a field that the target lacks
        if is_refused and expected.contract.observes_refusals:
            expected.check(invocation, f"after a refused call ({invalid.name})")


def check_held_results(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` where later calls change results that the caller holds.

    Results that lie in the caller's own memory are not looked at.

    Args:
        expected: A valid call, with its answer.
        target: What is called.
    """
    __tracebackhide__ = True
    contract = expected.contract
    if contract.aliases or contract.changes or contract.compares_views:
        return
    invocation = expected.invocation(target)
    first = expected.check(invocation, "")
    leaves = _leaves(expected.answer)
    for contents, other in _other_batches(expected):
        if _leaves(other.answer) == leaves:  # in the memory of the first, it would not show
            continue
        condition = f"called {NUM_HELD} times, the last time"
        with invocation.converter.tracker.holding(contents):
            held = [other.run(invocation, condition) for _ in range(NUM_HELD)]
            other.compare(held[-1], invocation, condition)
        expected.compare(first, invocation, f"held while {NUM_HELD} other batches are computed")
        return


def _leaves(answer: object) -> dict[str, Any]:
    """Return the values in an answer by path, with arrays as lists.

    >>> _leaves([5, True])
    {'result[0]': 5, 'result[1]': True}
    """
    return {path: plain(part) for path, part in walk(answer, "result") if not children(part)}
