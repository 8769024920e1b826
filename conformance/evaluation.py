"""Compares one call: a target's result, or the error that it raises, with `reference`'s.

`checks` makes tests of many drawn calls from this. Without pytest, use it for calls of your own.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from conformance.aliases import shared_memory
from conformance.calls import Call
from conformance.comparison import Difference, Verdict, first_difference
from conformance.contracts import Contract, InvalidInput
from conformance.invocations import CallVariant, Invocation
from conformance.report import Mismatch
from conformance.targets import RAISED, REFERENCE, Target
from conformance.views import first_view_difference


def check_answers(
    contract: Contract, target: Target, call: Call, variant: CallVariant, *, seed: int
) -> None:
    """Raise `Mismatch` where a target's result of a valid call differs from `reference`'s.

    The target is called twice, in checked mode first: there an access out of bounds raises, and
    does not crash. The two results must not share memory.

    Args:
        contract: What is stated about the function.
        target: What is called.
        call: The call.
        variant: What the caller is free to choose.
        seed: The order of threads.
    """
    __tracebackhide__ = True
    once = dataclasses.replace(variant, follows_idle_step=False)
    expected = Invocation(REFERENCE, call, once, contract.changes)
    expected_result = expected.run()
    expected.check_unchanged(contract.changes)
    answers = []
    for checked in (True, False):
        is_twice = variant.follows_idle_step and not (checked or target.is_simulated)
        actual = Invocation(target, call, variant if is_twice else once, contract.changes)
        with target.running(checked=checked, seed=seed):
            try:
                got = actual.run()
            except RAISED as error:
                difference = _outcome(f"raised {type(error).__name__}: {error}", "a result")
                raise Mismatch(call, target.name, difference) from error
        found = _first_difference(contract, (expected, expected_result), (actual, got))
        if found is not None:
            raise Mismatch(call, target.name, found)
        actual.check_unchanged(contract.changes)
        answers.append(got)
    shared = shared_memory(*answers)
    if shared is not None:
        raise Mismatch(call, target.name, shared)


def _first_difference(
    contract: Contract, expected: tuple[Invocation, object], actual: tuple[Invocation, object]
) -> Difference | None:
    """Return the first difference in what was answered, in what memory, and in what was changed."""
    device = actual[0].target.device or "cpu"
    shows = contract.shows or (lambda result: result)
    return (
        first_difference(shows(expected[1]), shows(actual[1]), "result", device)
        or _aliasing(contract, expected, actual)
        or _changes(contract, expected[0], actual[0])
    )


def _aliasing(
    contract: Contract, expected: tuple[Invocation, object], actual: tuple[Invocation, object]
) -> Difference | None:
    """Return the first place where a result lies in other memory than it is defined to."""
    if contract.compares_views:
        roots = [{**made.arguments, **made.hints} for made, _ in (expected, actual)]
        return first_view_difference(expected[1], actual[1], *roots)
    call = expected[0].call
    aliases = [alias for alias in contract.aliases if alias.applies(call)]
    differences = (made.aliasing(result, aliases) for made, result in (expected, actual))
    return next(itertools.chain.from_iterable(differences), None)


def _changes(contract: Contract, expected: Invocation, actual: Invocation) -> Difference | None:
    """Return the first difference in what the function changed."""
    device = actual.target.device or "cpu"
    if contract.observe is not None:
        seen = contract.observe(expected.arguments), contract.observe(actual.arguments)
        return first_difference(*seen, "/".join(sorted(contract.changes)))
    for name in sorted(contract.changes & set(actual.arguments)):
        difference = first_difference(
            expected.arguments[name], actual.arguments[name], name, device
        )
        if difference is not None:
            return difference
    return None


def check_refusal(
    invocation: Invocation,
    invalid: InvalidInput,
    observe: Callable[[Mapping[str, Any]], object] | None = None,
    *,
    checked: bool = True,
) -> BaseException:
    """Raise `Mismatch` unless the call is refused as the invalid input says and changes nothing.

    Args:
        invocation: The call, on a target.
        invalid: What is wrong with the call.
        observe: What to compare of a caller's own objects.
        checked: Whether in checked mode.

    Returns:
        The exception with which it is refused.
    """
    __tracebackhide__ = True
    mode = "" if checked else ", with checks off"
    expected_result = f"{invalid.error.__name__} naming {invalid.naming} ({invalid.name}{mode})"
    before = copy.deepcopy(observe(invocation.arguments)) if observe else None
    with invocation.target.running(checked=checked):
        try:
            result = invocation.run()
        except RAISED as error:  # any exception is compared
            got = f"{type(error).__name__}: {error}"
            if all(
                is_named(invalid.error, name, error) for name in (invalid.argument, invalid.also)
            ):
                invocation.check_unchanged(frozenset())
                after = observe(invocation.arguments) if observe else None
                difference = first_difference(before, after, "after the refusal")
                if difference is not None:
                    raise Mismatch(invocation.call, invocation.target.name, difference) from error
                return error
        else:
            got = f"returned {result!r}"
    raise Mismatch(invocation.call, invocation.target.name, _outcome(got, expected_result))


def is_named(expected_result: type[Exception] | None, argument: str, error: object) -> bool:
    """Return whether an exception is of a class, exactly, and its message names an argument.

    >>> is_named(ValueError, "a", ValueError("a is -1"))
    True
    >>> is_named(ValueError, "a", ValueError("bad"))
    False
    """
    return type(error) is expected_result and re.search(rf"\b{argument}\b", str(error)) is not None


def check_stays_inside(
    invocation: Invocation, invalid: InvalidInput, changes: frozenset[str]
) -> None:
    """Raise `Mismatch` where a bad call, with checks off, reaches outside its memory.

    Args:
        invocation: The call, on a target.
        invalid: What is wrong with the call. Its result is undefined.
        changes: The arguments that the function changes.
    """
    __tracebackhide__ = True
    with invocation.target.running(checked=False):
        try:
            invocation.run()
        except RAISED as error:
            if str(error).startswith("kernel "):  # the simulator's; all others are refusals
                got = f"{type(error).__name__}: {error}"
                expected_result = f"an answer or a refusal ({invalid.name}, with checks off)"
                raise Mismatch(
                    invocation.call, invocation.target.name, _outcome(got, expected_result)
                ) from error
    arrays = {n: a for n, a in invocation.call.arguments.items() if isinstance(a, np.ndarray)}
    written = [arrays[name] for name in changes & arrays.keys()]
    # A bad `out` may be an input; then that changes with it.
    changing = {n for n, a in arrays.items() if any(np.shares_memory(a, w) for w in written)}
    invocation.check_unchanged(changes | changing)


def _outcome(got: str, expected: str) -> Difference:
    return Difference(Verdict.OUTCOME, "the call", None, got, expected)


def exception_of(act: Callable[[], object]) -> Exception | None:
    """Return what a call raises, None for nothing.

    >>> exception_of(lambda: 1 // 0), exception_of(lambda: 1)
    (ZeroDivisionError('integer division or modulo by zero'), None)
    """
    try:
        act()
    except Exception as error:  # noqa: BLE001  # the caller looks at it
        return error
    return None
