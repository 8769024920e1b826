"""Calls in sequence: other batches in the same memory, refusals, and results that are held.

An implementation may cache answers, by the address, shape or sum of the arguments, and may reuse
the buffers of results. Neither may change a later answer or a result that a caller holds.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import mmap
import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import cache, partial
from itertools import islice
from typing import Final

from conformance.adapters import Unsupported
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.neighbours import Contents, neighbours
from conformance.conditions.scenarios import Scenario
from conformance.contracts.contract import Contract, InvalidInput
from conformance.contracts.evaluation import check_refusal
from conformance.coverage.presets import MINIMAL
from conformance.execution.forked_calls import run_in_child
from conformance.execution.gpu_context import UsedGpuError
from conformance.execution.invocations import Invocation
from conformance.execution.process_state import ALL_SETTINGS, read_settings, restore_settings
from conformance.generation.examples import draw_examples
from conformance.targets.implementations import Absent
from conformance.targets.target import LOOKED_UP, RAISED, REFERENCE, Target
from conformance.values.call import Call

NUM_NEIGHBOURS = 2
"""Other batches before the call that is compared."""

NUM_HELD = 1100
"""Results that are held at a time: more than rings and pools of buffers have."""

TESTS: Final = "conformance.test_"
"""The prefix of the names of modules that define contracts."""

NUM_CALLS_OF_OTHERS = 3
"""Calls of each other function while a result is held."""

HANG_SECONDS: Final = 1.0
"""A call of another function that takes longer hangs: less than any check may take."""

OTHER_BATCH: Final = "called after another batch in the same memory"
REFUSED: Final = "called after a refused call"
REFUSED_VALUES: Final = "called after values were refused in checked mode"
REFUSED_EQUAL: Final = "refused though equal to a call that was valid"
HELD: Final = "with a thousand results held"
OVERWRITTEN: Final = "a result that is right when it is returned, and changes afterwards"
HELD_AMONG_OTHERS: Final = "with a result held while other functions are called"


def other_batch_scenarios(expected: KnownAnswer, other: KnownAnswer) -> Iterator[Scenario]:
    """Yield a call after other batches in the same memory, which have other answers.

    It is the first of the two calls for which there are such batches: an empty batch has none.
    """
    for known in (expected, other):
        batches = (batch for batch in _other_batches(known) if batch[1].differs_from(known))
        chosen = list(islice(batches, NUM_NEIGHBOURS))
        if chosen:
            yield Scenario(OTHER_BATCH, partial(_check_other_batches, known, chosen))
            break


def _check_other_batches(
    expected: KnownAnswer, others: list[tuple[Contents, KnownAnswer]], target: Target
) -> None:
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    for contents, other in others:
        expected.check(invocation, "before other batches in the same memory")
        with invocation.converter.tracker.holding(contents):
            other.check(invocation, "after another batch in the same memory")
        expected.check(invocation, "after another batch in the same memory")


def _other_batches(expected: KnownAnswer) -> Iterator[tuple[Contents, KnownAnswer]]:
    """Yield contents of a call's memory that make another valid call, with its known answer."""
    contract, invocation = expected.contract, expected.invocation(REFERENCE)
    for contents in neighbours(invocation.call, contract.changes):
        with invocation.converter.tracker.holding(contents):
            # Without its source, which is the batch that was drawn.
            made = Call(expected.call.function, copy.deepcopy(invocation.arguments))
            try:
                other = KnownAnswer.of_invocation(contract, invocation, made)
            except RAISED:  # not a valid call
                continue
        yield contents, other


def refusal_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield the call after refused calls, and refused calls after a valid call that equals them.

    For each argument, one call is always refused, and one only in checked mode, late, when much
    has been computed. A cache may mistake equal calls for each other.
    """
    if not expected.contract.observes_refusals:
        return
    for name, is_value in ((REFUSED, False), (REFUSED_VALUES, True)):
        refused = [*refused_calls(expected, is_value=is_value)]
        if refused:
            yield Scenario(
                name, partial(_check_after_refusals, expected, refused, is_checked=is_value)
            )

    equal = [*_equal_calls(expected)]
    if equal:
        yield Scenario(REFUSED_EQUAL, partial(_check_equal_calls, expected, equal))


def refused_calls(expected: KnownAnswer, *, is_value: bool) -> Iterator[tuple[InvalidInput, Call]]:
    """Yield an invalid call for each argument, made from a valid one.

    Args:
        expected: The valid call.
        is_value: Whether values in arrays are invalid, which only checked mode refuses.
    """
    seen: set[str] = set()
    for invalid in expected.contract.invalid_inputs:
        if invalid.is_value is is_value and not invalid.is_hint and invalid.argument not in seen:
            bad = invalid.change(expected.call)
            if bad is not None:
                seen.add(invalid.argument)
                yield invalid, bad


def _check_after_refusals(
    expected: KnownAnswer,
    refused: list[tuple[InvalidInput, Call]],
    target: Target,
    *,
    is_checked: bool,
) -> None:
    __tracebackhide__ = True
    for invalid, bad in refused:
        invocation, is_refused = expected.invocation(target), True
        checked_mode = target.running(checked=True) if is_checked else nullcontext()
        with invocation.with_call(bad) as made, checked_mode, suppress(*RAISED):
            made.run()
            is_refused = False  # a declared deviation, or a field that the target lacks
        if is_refused:
            expected.check(invocation, f"after a refused call ({invalid.name})")


def _equal_calls(expected: KnownAnswer) -> Iterator[tuple[InvalidInput, Call]]:
    """Yield invalid calls with 2.0 in place of 2, or True in place of 1."""
    for invalid in expected.contract.invalid_inputs:
        value = expected.call.arguments.get(invalid.argument)
        if type(value) is int and is_of_number(expected.contract.function, invalid):
            bad = invalid.change(expected.call)
            if bad is not None and bad[invalid.argument] == value:
                yield invalid, bad


def is_of_number(function: str, invalid: InvalidInput) -> bool:
    """Return whether an invalid input is a number of another type for an int parameter."""
    kinds = ("a bool", "a float")
    is_type = invalid.name in {f"{invalid.argument} is {kind}" for kind in kinds}
    return is_type and invalid.argument in inspect.signature(REFERENCE.lookup(function)).parameters


def _check_equal_calls(
    expected: KnownAnswer, equal: list[tuple[InvalidInput, Call]], target: Target
) -> None:
    __tracebackhide__ = True
    for invalid, bad in equal:
        expected.check(expected.invocation(target), "before an invalid call that equals it")
        check_refusal(Invocation(target, bad), invalid, checked=False)


def held_scenarios(expected: KnownAnswer, other: KnownAnswer) -> Iterator[Scenario]:
    """Yield the results of a call, held while others are computed.

    Nothing is yielded if the call writes to its arguments, since its results may lie there.
    """
    if expected.contract.changes & expected.call.arguments.keys():
        return
    for contents, neighbour in _other_batches(expected):
        if neighbour.differs_from(expected):
            yield Scenario(HELD, partial(_check_held_neighbours, expected, contents, neighbour))
            break
    else:
        yield Scenario(HELD, partial(_check_held, expected, other))
    if expected.contract.has_arrays:
        yield Scenario(HELD_AMONG_OTHERS, partial(_check_held_among_others, expected))


def _check_held_neighbours(
    expected: KnownAnswer, contents: Contents, other: KnownAnswer, target: Target
) -> None:
    """Hold a result while another batch of the same shapes, in its memory, is computed.

    Results that lie in the arguments are right again once the arguments are restored.
    """
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    first = expected.check(invocation, "")
    with invocation.converter.tracker.holding(contents):
        _hold(other, invocation)
    expected.compare(
        first, invocation, f"held while {NUM_HELD} other batches are computed", OVERWRITTEN
    )


def _check_held(expected: KnownAnswer, other: KnownAnswer, target: Target) -> None:
    """Hold a result while any other call is made."""
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    first = expected.check(invocation, "")
    _hold(other, other.invocation(target))
    expected.compare(first, invocation, f"held while {NUM_HELD} other calls are made", OVERWRITTEN)


def _hold(expected: KnownAnswer, invocation: Invocation) -> None:
    __tracebackhide__ = True
    condition = f"in the last of {NUM_HELD} calls"
    held = [expected.run(invocation, condition) for _ in range(NUM_HELD)]
    expected.compare(held[-1], invocation, condition)


def _check_held_among_others(expected: KnownAnswer, target: Target) -> None:
    """Hold a result while other functions are called, which may share buffers with this one."""
    __tracebackhide__ = True
    invocation = expected.invocation(target)
    first = expected.check(invocation, "")
    looked_up, settings = {*LOOKED_UP}, read_settings(ALL_SETTINGS)
    function = expected.call.function
    _run_calls(target, (one for one in _calls_that_return(target) if one.function != function))
    restore_settings(settings)
    LOOKED_UP.intersection_update(looked_up)  # this function does not use them
    expected.compare(first, invocation, "held while other functions are called", OVERWRITTEN)


def _run_calls(target: Target, calls: Iterable[Call]) -> None:
    """Call functions, and ignore what they return or raise."""
    for call in calls:
        with suppress(*RAISED, Absent, Unsupported):  # their own checks report it
            Invocation(target, call).run()


@cache
def _calls_that_return(target: Target) -> list[Call]:
    """Return some small calls of each function, without functions that end or hang the process.

    Their own checks report that; here it would be attributed to another function. So
    the calls are tried in forked children, but not in a process that has used a GPU.
    """
    calls = [one for one in _calls_of_all() if target.implementation.offers(one.function)]
    place = ctypes.c_int64.from_buffer(mmap.mmap(-1, ctypes.sizeof(ctypes.c_int64)))
    with suppress(UsedGpuError):  # by another target of this process
        while target.device != "cuda" and _dies(target, calls, place):
            dead = calls[place.value].function
            calls = [one for one in calls if one.function != dead]
    return calls


def _dies(target: Target, calls: list[Call], place: ctypes.c_int64) -> bool:
    """Return whether a forked child that makes calls dies; `place` gets the last call's index."""

    def run() -> None:
        for place.value, call in enumerate(calls):
            _run_calls(target, [call])

    place.value = 0
    return bool(run_in_child(run, HANG_SECONDS, lambda: place.value))


@cache
def _calls_of_all() -> list[Call]:
    """Return some small calls of each function with arrays that the run checks."""
    tested = [module for name, module in sys.modules.items() if name.startswith(TESTS)]
    contracts = [
        value
        for module in sorted(tested, key=operator.attrgetter("__name__"))
        for value in vars(module).values()
        if isinstance(value, Contract)
    ]
    return [
        call
        for contract in contracts
        if contract.has_arrays
        for call in draw_examples(contract.calls(MINIMAL), NUM_CALLS_OF_OTHERS)
    ]
