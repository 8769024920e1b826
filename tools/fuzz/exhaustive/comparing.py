"""Compares one case on `reference` and on a target, in less than half a millisecond.

The harness' own check takes several times as long: it converts the arguments of each call again and
compares in whose memory results lie. Here arguments that consecutive calls share are converted
once. Results, the arguments that a function writes, those that it may not write, and the classes of
exceptions are compared, in checked mode and outside of it; a call that `reference` refuses is made
in checked mode only.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from conformance.calls import Arguments, Call
from conformance.comparison import Difference, Verdict, first_difference
from conformance.contracts import Contract
from conformance.conversion import Converter
from conformance.functions import contracts
from conformance.sessions import construct
from conformance.strategies.block_table import Operation, Session
from conformance.targets import RAISED, REFERENCE, Target
from conformance.values import copied
from tools.fuzz.exhaustive.equality import is_same

Case: TypeAlias = Call | Session
"""What is compared: one call, or an object and what is done to it."""

OBSERVING = 2
"""The operations at the end of a session that make its state visible, outside of checked mode."""

LAST_COMPARED = OBSERVING + 1
"""The operations after which all results so far are compared: the observing ones and the last one
before them. All shorter sessions are cases of their own."""


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What a call returned or raised."""

    value: Any
    is_refusal: bool


def _outcome_of(function: Callable[..., Any], arguments: Arguments) -> _Outcome:
    try:
        return _Outcome(function(**arguments), is_refusal=False)
    except RAISED as error:
        return _Outcome(error, is_refusal=True)


class Comparer:
    """Compares cases on a target with `reference`; its arguments are shared from case to case.

    Args:
        target: The target.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._device = target.device or "cpu"
        self._modes = (True, False) if target.implementation.has_checked_mode else (True,)
        self._converter = target.converter()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make comparisons inside run as the target's."""
        with self._target.running(checked=False):
            yield

    def compare(self, case: Case) -> Difference | None:
        """Return the first difference of the target from `reference` in a case."""
        if isinstance(case, Session):
            return self._compare_session(case)
        return self._compare_call(case)

    def find_change(self) -> Difference | None:
        """Return the first change of an argument that may not change, and forget all arguments."""
        converter, self._converter = self._converter, self._target.converter()
        return converter.tracker.changed(frozenset())

    def _converted(self, arguments: Arguments) -> Arguments:
        """Return arguments as the target takes them; the same object is converted once."""
        return {name: self._converter.convert(value, name) for name, value in arguments.items()}

    def _mode(self, checked: bool) -> contextlib.AbstractContextManager[object]:
        if len(self._modes) == 1:
            return contextlib.nullcontext()
        mode: contextlib.AbstractContextManager[object] = self._target.find("checks")(checked)
        return mode

    def _compare_call(self, call: Call) -> Difference | None:
        contract = contracts()[call.function]
        written = {name: call.arguments[name] for name in contract.changes & set(call.arguments)}
        ours = {**call.arguments, **_carried(REFERENCE, written)[1]}
        expected = _outcome_of(REFERENCE.lookup(call.function), ours)
        shared = {name: v for name, v in call.arguments.items() if name not in written}
        shared = self._converted(shared)
        function = self._target.lookup(call.function)
        for checked in self._modes:
            if expected.is_refusal and not checked:
                break
            converter, theirs = _carried(self._target, written)
            theirs = {**shared, **theirs}
            with self._mode(checked):
                actual = _outcome_of(function, theirs)
            difference = self._difference(expected, actual)
            if difference is None and written:
                difference = self._written_difference(contract, ours, theirs)
                difference = difference or converter.tracker.changed(contract.changes)
            if difference is not None:
                return difference
        return None

    def _written_difference(
        self, contract: Contract, ours: Arguments, theirs: Arguments
    ) -> Difference | None:
        """Return the first difference in the arguments that the function writes."""
        if contract.observe is not None:
            pairs = {
                "/".join(sorted(contract.changes)): (
                    contract.observe(ours),
                    contract.observe(theirs),
                )
            }
        else:
            pairs = {name: (ours[name], theirs[name]) for name in contract.changes & set(ours)}
        for name, pair in pairs.items():
            if not is_same(*pair, name):
                difference = first_difference(*pair, name, self._device)
                if difference is not None:
                    return difference
        return None

    def _difference(self, expected: _Outcome, actual: _Outcome) -> Difference | None:
        """Return the first difference between two results, or between the classes of exceptions.

        Messages are not compared: of several things that are wrong, each may be named first.
        """
        if not expected.is_refusal and not actual.is_refusal:
            if is_same(expected.value, actual.value):
                return None
            return first_difference(expected.value, actual.value, "result", self._device)
        if type(expected.value) is not type(actual.value):
            got, expected_part = _described(actual), _described(expected)
            return Difference(Verdict.OUTCOME, "the call", None, got, expected_part)
        return None

    def _compare_session(self, session: Session) -> Difference | None:
        operations = session.operations
        tables = construct(REFERENCE, session)
        results: list[_Outcome] = []
        expected: list[list[_Outcome] | None] = []
        for step, operation in enumerate(operations):
            results.append(_outcome_of(getattr(tables, operation.method), operation.arguments))
            is_compared = step >= len(operations) - LAST_COMPARED
            expected.append(copied(results) if is_compared else None)
        acting = len(operations) - OBSERVING
        for checked in self._modes:
            results = []
            with self._mode(checked):
                tables = construct(self._target, session)
                difference = self._perform(tables, operations[:acting], expected, results)
            if difference is None:
                with self._mode(checked=False):
                    difference = self._perform(tables, operations[acting:], expected, results)
            if difference is not None:
                return difference
        return None

    def _perform(
        self,
        tables: object,
        operations: Sequence[Operation],
        expected: Sequence[list[_Outcome] | None],
        results: list[_Outcome],
    ) -> Difference | None:
        """Do operations to a target's object, and return the first difference.

        Args:
            tables: The object.
            operations: What is done to it.
            expected: After each operation of the session, all results by then, or None.
            results: The results so far, to which those of the operations are added.
        """
        for operation in operations:
            arguments = self._converted(operation.arguments)
            results.append(_outcome_of(getattr(tables, operation.method), arguments))
            expected_part = expected[len(results) - 1]
            difference = self._results_difference(expected_part, results) if expected_part else None
            if difference is not None:
                return difference
        return None

    def _results_difference(
        self, expected: list[_Outcome], actual: list[_Outcome]
    ) -> Difference | None:
        """Return the first difference in the last outcome, or in the views returned before it."""
        difference = self._difference(expected[-1], actual[-1])
        if difference is not None:
            return difference
        for step, (expected_part, got) in enumerate(zip(expected, actual, strict=True)):
            if (
                expected_part.is_refusal
                or got.is_refusal
                or is_same(expected_part.value, got.value)
            ):
                continue
            path = f"results[{step}]"
            difference = first_difference(expected_part.value, got.value, path, self._device)
            if difference is not None:
                return difference
        return None


def _carried(target: Target, values: Arguments) -> tuple[Converter, Arguments]:
    """Return a target's new copies of arguments, and what remembers what they were."""
    converter = target.converter()
    return converter, {name: converter.convert(value, name) for name, value in values.items()}


def _described(outcome: _Outcome) -> str:
    if outcome.is_refusal:
        return f"raised {type(outcome.value).__name__}: {outcome.value}"
    return "a result"
