"""The checks of a contract: answers, refusals, conditions, laws, and tensors on other devices.

A contract is defined in a conformance module under a name that begins with `test_`, and is tested
by all of its checks. `evaluation` evaluates single calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.adapters import Unsupported
from conformance.checks.device_checks import refuses_wrong_device
from conformance.checks.law_checks import law_checks
from conformance.checks.tensor_kind_checks import refuses_other_tensors
from conformance.conditions.condition_checks import condition_checks
from conformance.contracts.check import Check
from conformance.contracts.contract import Contract, InvalidInput
from conformance.contracts.evaluation import check_answers, check_refusal, check_stays_inside
from conformance.coverage.goals import pair, reached_goals
from conformance.coverage.presets import Preset
from conformance.coverage.size_axes import (
    Axes,
    goals_of_axes,
    presets_of_axes,
    reached_bands,
)
from conformance.execution.invocations import CALL_VARIANTS, CallVariant, Invocation
from conformance.generation.profiles import Kind
from conformance.messages.mismatch import Mismatch
from conformance.strategies import cached as st
from conformance.targets.implementations import is_of_fast
from conformance.targets.target import REFERENCE, Target
from conformance.values.call import Call
from conformance.values.differences import Verdict
from conformance.values.wording import compare_wording


def checks_in(values: Mapping[str, object]) -> Iterator[tuple[str, Check]]:
    """Yield the checks among a module's values, with the names of their tests.

    Args:
        values: The values by name, as `vars(module)` gives them.
    """
    for name, value in values.items():
        if not name.startswith("test_"):
            continue
        if isinstance(value, Check):
            yield name, value
        elif isinstance(value, Contract):
            yield from ((f"{name}{suffix}", check) for suffix, check in checks_of(value))


def checks_of(contract: Contract) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a contract, each with the suffix of its test names."""
    yield "", same_answer(contract)
    if contract.axes:
        yield "_of_all_sizes", same_large_answer(contract)
    yield from condition_checks(contract)
    if contract.invalid_inputs:
        yield "_refuses", same_refusal(contract)
    yield from (("_laws", check) for check in law_checks(contract))
    if contract.on_device:
        yield "_wrong_device", refuses_wrong_device(contract)
    if contract.has_arrays or contract.has_fixed_arrays:
        yield "_of_other_tensors", refuses_other_tensors(contract)


def same_answer(contract: Contract) -> Check:
    """Return the check that a target returns what `reference` does for valid calls."""
    named = [*contract.goals, *(pair(a, b) for a, b in contract.pairs)]
    # An idle step would permanently change the caller's own objects.
    free = {
        "has_numpy_scalars": True,
        "is_positional": True,
        "has_own_objects": contract.takes_objects,
        "follows_idle_step": contract.observe is None,
    }
    choices = {name: st.booleans() if is_free else st.just(False) for name, is_free in free.items()}
    variants = st.builds(CallVariant, **choices)

    def examples(preset: Preset) -> SearchStrategy[ValidExample]:
        return st.builds(_valid, contract.calls(preset), st.integers(0, 2**16), variants)

    def body(target: Target, example: ValidExample) -> None:
        __tracebackhide__ = True
        check_answers(contract, target, example.call, example.variant, seed=example.seed)

    def goals_of(example: ValidExample) -> list[str]:
        reached = reached_goals(example.call, contract.goals, contract.pairs)
        return reached + example.variant.goals

    return Check(
        contract.function,
        Kind.SAME_ANSWER,
        examples,
        body,
        f"{contract.function} answers valid calls as reference does.",
        [*named, *(CALL_VARIANTS[field] for field, is_free in free.items() if is_free)],
        goals_of,
        contract.has_kernel,
        contract.has_device_path,
    )


def same_large_answer(contract: Contract) -> Check:
    """Return the check of answers for inputs that are large along one axis each."""
    return along_axes(same_answer(contract), contract.axes, lambda example: example.call)


def along_axes(check: Check, axes: Axes, measured: Callable[[Any], object]) -> Check:
    """Return a check with examples that are large along one axis each.

    It is not run in the simulator, where each element costs a thread of 50 us.

    Args:
        check: The check with examples of the usual sizes.
        axes: The axes.
        measured: Returns the part of an example whose sizes are measured.
    """
    return dataclasses.replace(
        check,
        kind=Kind.LARGE,
        presets=[*presets_of_axes(axes, check.function)],
        description=f"Along each size axis: {check.description}",
        goals=[*goals_of_axes(axes)],
        goals_of=lambda example: reached_bands(axes, measured(example)),
        axes=axes,
        has_kernel=False,
        has_device_path=False,
    )


def _valid(call: Call, seed: int, variant: CallVariant) -> ValidExample:
    """Return an example; every fourth seed has negated tensors."""
    return ValidExample(call, seed, dataclasses.replace(variant, has_negated_tensors=seed % 4 == 3))


@dataclasses.dataclass(frozen=True)
class ValidExample:
    """A valid call, and how to make it.

    Attributes:
        call: The call.
        seed: The order of threads.
        variant: The variant of the call.
    """

    call: Call
    seed: int
    variant: CallVariant

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        variant = ", ".join(self.variant.goals) or "called by keyword"
        printer.text(f"the call above, {variant}, thread-order seed {self.seed}")


def same_refusal(contract: Contract) -> Check:
    """Return the check that a target refuses invalid calls as `reference` does.

    Every example makes one valid call invalid in every way that the contract lists. The exception
    must have the same class and name the argument, and nothing may have changed. Messages are
    compared too (see `conformance.values.wording`): those of `fast` must have the text of
    `reference`, those of others must mention the same element and value. The most severe failure
    of an example is reported; declared deviations come last.
    """

    @st.composite
    def examples(draw: st.DrawFn, preset: Preset) -> InvalidExample:
        call = draw(contract.calls(preset))
        invalid_calls = [(invalid, invalid.change(call)) for invalid in contract.invalid_inputs]
        return InvalidExample(
            call, [(invalid, bad) for invalid, bad in invalid_calls if bad is not None]
        )

    def body(target: Target, example: InvalidExample) -> None:
        __tracebackhide__ = True
        failures, unsupported = [], None
        right = {one: Invocation(one, example.call) for one in (REFERENCE, target)}
        for invalid, call in example.ways:
            if not _is_given(right[target], invalid, call):
                continue
            failure = None
            with right[REFERENCE].with_call(call) as ours, right[target].with_call(call) as theirs:
                try:
                    _check_refusals(contract, invalid, ours, theirs)
                except Mismatch as error:
                    failure = error
                    failures.append(error)
                except Unsupported as error:  # of this invalid input only
                    unsupported = error
            if invalid.is_value or failure is not None:  # the arguments may have been written to
                right[target] = Invocation(target, example.call)
        if failures:
            raise min(failures, key=lambda one: _order_of_report(target, one))
        if unsupported is not None:
            raise unsupported

    return Check(
        contract.function,
        Kind.SAME_REFUSAL,
        examples,
        body,
        f"{contract.function} refuses invalid calls as reference does, and changes nothing; "
        "with checks off, it accesses no memory outside their arguments.",
        [invalid.goal for invalid in contract.invalid_inputs],
        lambda example: [invalid.goal for invalid, _ in example.ways],
        contract.has_kernel,
        contract.has_device_path,
        contract.refusal_presets,
        tests_invalid_inputs=True,
    )


def _check_refusals(
    contract: Contract, invalid: InvalidInput, ours: Invocation, theirs: Invocation
) -> None:
    """Raise `Mismatch` if a target does not refuse an invalid call as `reference` does."""
    __tracebackhide__ = True
    found, target, observe = None, theirs.target, contract.observe_refused
    # A refused call changes nothing, so the invocation can be called again.
    if invalid.is_hint:
        check_refusal(theirs, invalid, observe)
    else:
        expected = check_refusal(ours, invalid, observe)
        actual = check_refusal(theirs, invalid, observe)
        is_exact = is_of_fast(target.lookup(contract.function))
        found = compare_wording(expected, actual, is_exact=is_exact)
    if invalid.is_value:
        check_stays_inside(theirs, invalid, contract.changes)
    else:
        check_refusal(theirs, invalid, observe, checked=False)
    if found is not None:
        raise Mismatch(theirs.call, target.name, found)


def _order_of_report(target: Target, mismatch: Mismatch) -> tuple[bool, int, bool]:
    """Return a sort key: severe failures first, wording after others, declared ones last."""
    is_wording = mismatch.difference.verdict is Verdict.WORDING
    is_declared = target.excuses(mismatch.call.function, mismatch)
    return is_declared, -mismatch.finding.weight, is_wording


def _is_given(invocation: Invocation, invalid: InvalidInput, call: Call) -> bool:
    """Return whether a target has the field or the hint that is invalid."""
    if invalid.argument in invocation.target.missing_fields:
        return False
    valid = invocation.call.hints
    changed = [name for name in call.hints if call.hints[name] is not valid.get(name)]
    return not invalid.is_hint or all(map(invocation.takes, changed))


@dataclasses.dataclass(frozen=True)
class InvalidExample:
    """A valid call, and the invalid calls made from it.

    Attributes:
        call: The valid call.
        ways: The invalid inputs that apply to it, each with the call that has it.
    """

    call: Call
    ways: list[tuple[InvalidInput, Call]]

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the bad call, which the report prints better than Hypothesis does."""
        printer.text(
            f"the call above, one of {len(self.ways)} invalid ones made from {self.call!r}"
        )
