"""Compares one call: a target's result, or the error that it raises, with `reference`'s.

`conformance.checks` uses it for drawn calls. Without pytest, use it for calls of your own.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.contracts.contract import Contract, InvalidInput
from conformance.execution.invocations import CALL_VARIANTS, IDLE_STEP, CallVariant, Invocation
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.aliases import Alias, shared_memory
from conformance.values.call import Arguments, Call
from conformance.values.comparison import ResultName, first_difference
from conformance.values.differences import Difference, Verdict, most_severe, raised
from conformance.values.views import first_view_difference


@dataclasses.dataclass(frozen=True)
class Expected:
    """The expected result and effects of a valid call.

    Attributes:
        result: The result, as `shown` returns it.
        roots: The arguments of `reference`, in whose memory the result may lie.
        changed: The changed values, as `changed_by` returns them.
        aliases: The parts of the result that are an argument, or a view of one.
    """

    result: object
    roots: Arguments
    changed: Mapping[str, object]
    aliases: Sequence[Alias] = ()


def check_answers(
    contract: Contract, target: Target, call: Call, variant: CallVariant, *, seed: int
) -> None:
    """Raise `Mismatch` if a target's result of a valid call differs from `reference`'s.

    The target is called twice, first in checked mode, where an out-of-bounds access raises instead
    of crashing. The two results must not share memory. `seed` determines the order of threads. The
    report has only the options of the variant that are needed to reproduce the difference.
    """
    __tracebackhide__ = True
    variant = variant.supported_by(target)
    found = _mismatch(contract, target, call, variant, seed)
    for field in CALL_VARIANTS:
        if found is not None and getattr(variant, field):
            simpler = dataclasses.replace(variant, **{field: False})
            again = _mismatch(contract, target, call, simpler, seed)
            variant, found = (simpler, again) if again is not None else (variant, found)
    if found is not None:
        if found.call is not call:  # the call with zeros itself
            variant = dataclasses.replace(variant, follows_idle_step=False)
        found.variant = variant
        raise found


def _mismatch(
    contract: Contract, target: Target, call: Call, variant: CallVariant, seed: int
) -> Mismatch | None:
    """Return the mismatch of a target's result, or None."""
    try:
        _check_twice(contract, target, call, variant, seed)
    except Mismatch as error:
        return error
    return None


def _check_twice(
    contract: Contract, target: Target, call: Call, variant: CallVariant, seed: int
) -> None:
    """Raise `Mismatch` if one of two results of a call differs, or they share memory."""
    __tracebackhide__ = True
    once = dataclasses.replace(variant, follows_idle_step=False)
    made = Invocation(REFERENCE, call, once, contract.changes)
    result = made.run()
    made.check_unchanged(contract.changes)
    aliases = [alias for alias in contract.aliases if alias.applies(call)]
    wrong = None if contract.compares_views else next(made.aliasing(result, aliases), None)
    if wrong is not None:
        raise Mismatch(call, target.name, wrong)
    changed = changed_by(contract, made.arguments)
    expected = Expected(shown(contract, result), made.arguments, changed, aliases)
    answers = []
    for checked in (True, False):
        is_twice = variant.follows_idle_step and not (checked or target.is_simulated)
        actual = Invocation(target, call, variant if is_twice else once, contract.changes)
        answers.append(check_answer(contract, expected, actual, checked=checked, seed=seed))
    shared = shared_memory(answers[0], answers[1])
    if shared is not None:
        raise Mismatch(call, target.name, shared)


def check_answer(
    contract: Contract, expected: Expected, actual: Invocation, *, checked: bool, seed: int = 0
) -> object:
    """Return the result of a valid call; raise `Mismatch` if it or its effects are wrong."""
    __tracebackhide__ = True
    call, target = actual.call, actual.target
    with target.running(checked=checked, seed=seed):
        try:
            got = actual.run()
        except RAISED as error:
            wanted = "return a result"
            if IDLE_STEP in getattr(error, "__notes__", ()):
                call, wanted = call.with_zeros(), "return a result or raise ValueError"
            difference = Difference(Verdict.OUTCOME, "the call", None, raised(error), wanted)
            raise Mismatch(call, target.name, difference) from error
    found = most_severe(_differences(contract, expected, actual, got))
    if found is not None:
        context = (*found.context, *_effects(contract, expected, actual, found))
        raise Mismatch(call, target.name, dataclasses.replace(found, context=context))
    return got


def _effects(
    contract: Contract, expected: Expected, actual: Invocation, found: Difference
) -> Iterator[str]:
    """Yield lines about correctly changed values, if only the result is wrong."""
    if contract.observe is None or found.path != "result":
        return
    if changes_difference(contract, expected.changed, actual) is not None:
        return
    before, after = contract.observe(actual.call.arguments), expected.changed[OBSERVED]
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return
    changed = {
        name: value
        for name, value in after.items()
        if first_difference(before.get(name), value, name) is not None
    }
    if not changed:
        yield "nothing was changed, as expected"
    for name, value in changed.items():
        yield f"{name} after the call is correct: {value}"


def _differences(
    contract: Contract, expected: Expected, actual: Invocation, got: object
) -> Iterator[Difference | None]:
    """Yield the differences of a result, of its memory, and of the changed values."""
    device = actual.target.device or "cpu"
    found = first_difference(expected.result, shown(contract, got), contract.returns, device)
    yield found
    if found is None or found.verdict is not Verdict.TYPE:
        yield _aliasing(contract, expected, actual, got)
    yield changes_difference(contract, expected.changed, actual)
    yield actual.converter.tracker.changed(contract.changes)


def shown(contract: Contract, result: object) -> object:
    """Return a result in the form that is compared."""
    return result if contract.shows is None else contract.shows(result)


OBSERVED = "observed"
"""The key of what `Contract.observe` returns, in `changed_by`."""


def changed_by(contract: Contract, arguments: Arguments) -> dict[str, object]:
    """Return the present values of the changed arguments, or of the observed objects."""
    if contract.observe is not None:
        return {OBSERVED: contract.observe(arguments)}
    return {name: arguments[name] for name in sorted(contract.changes) if name in arguments}


def _aliasing(
    contract: Contract, expected: Expected, actual: Invocation, got: object
) -> Difference | None:
    """Return the first part of a result that lies in other memory than it should."""
    if contract.compares_views:
        roots = {**actual.arguments, **actual.hints}
        return first_view_difference(expected.result, got, expected.roots, roots)
    return next(actual.aliasing(got, expected.aliases), None)


def changes_difference(
    contract: Contract, expected: Mapping[str, object], actual: Invocation
) -> Difference | None:
    """Return the first difference in the values that the function changed.

    Args:
        contract: The contract of the function.
        expected: The values that `reference` changed, as `changed_by` returns them.
        actual: The call on a target, after it was made.
    """
    changed = changed_by(contract, actual.arguments)
    for name, value in expected.items():
        path, place = name, actual.target.device or "cpu"
        if name == OBSERVED:
            path, place = "/".join(sorted(contract.changes)), "cpu"
        difference = first_difference(value, changed[name], path, place)
        if difference is not None:
            return difference
    return None


def check_equal(
    target: Target, call: Call, expected: object, got: object, path: ResultName = "result"
) -> None:
    """Raise `Mismatch` if values of a target differ from the expected ones.

    Args:
        target: The target that was called.
        call: The call that is reported.
        expected: The arrays of `reference`, or a tree of them.
        got: Those of the target.
        path: Their name in the message; for a tuple, the names of its entries.
    """
    __tracebackhide__ = True
    difference = first_difference(expected, got, path, target.device or "cpu")
    if difference is not None:
        raise Mismatch(call, target.name, difference)


def check_refusal(
    invocation: Invocation,
    invalid: InvalidInput,
    observe: Callable[[Mapping[str, Any]], object] | None = None,
    *,
    checked: bool = True,
) -> BaseException:
    """Return the exception with which an invalid call is refused.

    Raise `Mismatch` if it is not refused as `invalid` describes, or changes anything. `observe`
    returns the state of the caller's own objects.
    """
    __tracebackhide__ = True
    expected = invalid.expected
    if not checked:
        expected = f"{expected.removesuffix(')')}, with checks off)"
    before = copy.deepcopy(observe(invocation.arguments)) if observe else None
    with invocation.target.running(checked=checked):
        try:
            result = invocation.run()
        except RAISED as error:  # any exception is compared
            got = raised(error)
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
    raise Mismatch(invocation.call, invocation.target.name, outcome(got, expected))


def check_error(
    target: Target,
    call: Call,
    error: Exception | None,
    expected: tuple[type[Exception], str],
    what: str,
) -> None:
    """Raise `Mismatch` if a call did not raise the expected exception.

    Args:
        target: The target that was called.
        call: The call that is reported.
        error: The exception that the call raised, if any.
        expected: The class of the exception, and the argument that its message must name.
        what: What is wrong with the call.
    """
    __tracebackhide__ = True
    kind, argument = expected
    if not is_named(kind, argument, error):
        got = "returned a result" if error is None else raised(error)
        wanted = f"raise {kind.__name__} naming {argument} ({what})"
        raise Mismatch(call, target.name, outcome(got, wanted))


def is_named(expected_result: type[Exception] | None, argument: str, error: object) -> bool:
    """Return whether an exception has exactly this class and its message names an argument.

    >>> is_named(ValueError, "a", ValueError("a is -1"))
    True
    >>> is_named(ValueError, "a", ValueError("bad"))
    False
    """
    return type(error) is expected_result and re.search(rf"\b{argument}\b", str(error)) is not None


def check_stays_inside(
    invocation: Invocation, invalid: InvalidInput, changes: frozenset[str]
) -> None:
    """Raise `Mismatch` if an invalid call, with checks off, accesses memory outside its arguments.

    Its result is undefined. `changes` are the arguments that the function may change.
    """
    __tracebackhide__ = True
    with invocation.target.running(checked=False):
        try:
            invocation.run()
        except RAISED as error:
            if str(error).startswith("kernel "):  # the simulator's; all others are refusals
                expected = f"stay inside its memory ({invalid.name}, with checks off)"
                difference = outcome(raised(error), expected)
                raise Mismatch(invocation.call, invocation.target.name, difference) from error
    arrays = {n: a for n, a in invocation.call.arguments.items() if isinstance(a, np.ndarray)}
    written = [arrays[name] for name in changes & arrays.keys()]
    # A bad `out` may be an input too, which then changes.
    changing = {n for n, a in arrays.items() if any(np.shares_memory(a, w) for w in written)}
    invocation.check_unchanged(changes | changing)


def outcome(got: str, expected: str) -> Difference:
    """Return the difference between the actual and the expected outcome of a call."""
    return Difference(Verdict.OUTCOME, "the call", None, got, expected)


def exception_of(act: Callable[[], object]) -> Exception | None:
    """Return the exception that a call raises, or None.

    >>> exception_of(lambda: 1 // 0), exception_of(lambda: 1)
    (ZeroDivisionError('integer division or modulo by zero'), None)
    """
    try:
        act()
    except Exception as error:  # noqa: BLE001  # the caller looks at it
        return error
    return None
