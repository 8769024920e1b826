"""Compare one case on `reference` and on a target, in less than half a millisecond.

The harness' own check takes several times as long: it converts the arguments of each call again and
compares the aliasing of results. Here arguments that consecutive calls share are converted once.
Compared are results, arguments that a function writes, arguments that it may not write, and the
classes of exceptions, with and without checked mode; a call that `reference` refuses is made in
checked mode only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract
from conformance.contracts.sessions import construct
from conformance.strategies.block_table import Operation, Session
from conformance.targets.conversion import Converter
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.call import Arguments, Call
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, raised
from conformance.values.parts import copied
from kvtwin.fuzz.exhaustive.equality import is_same

Case: TypeAlias = Call | Session
"""One call, or an object and the operations on it."""

OBSERVING = 2
"""The number of operations that end a session and show its state, without checked mode."""

LAST_COMPARED = OBSERVING + 1
"""The number of operations after which all results so far are compared: the observing ones and the
last one before them. Every shorter session is a separate case."""


def _outcome_of(function: Callable[..., Any], arguments: Arguments) -> Any:
    """Return a call's result, or the exception that it raises."""
    try:
        return function(**arguments)
    except RAISED as error:
        return error


class Comparer:
    """Compares cases on a target with `reference`; consecutive cases share converted arguments.

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
        """Set up the target for the comparisons inside."""
        with self._target.running(checked=False):
            yield

    def compare(self, case: Case) -> Difference | None:
        """Return the first difference between the target and `reference` in a case."""
        if isinstance(case, Session):
            return self._compare_session(case)
        return self._compare_call(case)

    def find_change(self) -> Difference | None:
        """Return the first change of an argument that may not change, and forget all arguments."""
        converter, self._converter = self._converter, self._target.converter()
        return converter.tracker.changed(frozenset())

    def _converted(self, arguments: Arguments) -> Arguments:
        """Return arguments converted for the target; the same object is converted once."""
        return {name: self._converter.convert(value, name) for name, value in arguments.items()}

    def _mode(self, checked: bool) -> contextlib.AbstractContextManager[object]:
        if len(self._modes) == 1:
            return contextlib.nullcontext()
        mode: contextlib.AbstractContextManager[object] = self._target.find("checks")(checked)
        return mode

    def _compare_call(self, call: Call) -> Difference | None:
        contract = contracts()[call.function]
        written = {name: call.arguments[name] for name in contract.changes & set(call.arguments)}
        ours = {**call.arguments, **_copies(REFERENCE.converter(), written)}
        expected = _outcome_of(REFERENCE.lookup(call.function), ours)
        shared = {name: v for name, v in call.arguments.items() if name not in written}
        shared = self._converted(shared)
        function = self._target.lookup(call.function)
        for checked in self._modes:
            if isinstance(expected, BaseException) and not checked:
                break
            converter = self._target.converter()
            theirs = {**shared, **_copies(converter, written)}
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
            name = "/".join(sorted(contract.changes))
            return self._difference(contract.observe(ours), contract.observe(theirs), name)
        differences = (
            self._difference(ours[name], theirs[name], name)
            for name in contract.changes & set(ours)
        )
        return next(filter(None, differences), None)

    def _difference(self, expected: Any, actual: Any, path: str = "result") -> Difference | None:
        """Return the first difference between two results, or between the classes of exceptions.

        Messages are not compared: if several things are wrong, either may be reported first.
        """
        if isinstance(expected, BaseException) or isinstance(actual, BaseException):
            if type(expected) is type(actual):
                return None
            is_error = isinstance(actual, BaseException)
            got = raised(actual) if is_error else "returned a result"
            is_error = isinstance(expected, BaseException)
            should = (
                f"raise {type(expected).__name__}: {expected}" if is_error else "return a result"
            )
            return Difference(Verdict.OUTCOME, "the call", None, got, should)
        if is_same(expected, actual, path):
            return None
        return first_difference(expected, actual, path, self._device)

    def _compare_session(self, session: Session) -> Difference | None:
        operations = session.operations
        tables = construct(REFERENCE, session)
        results: list[Any] = []
        expected: list[list[Any] | None] = []
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
        expected: Sequence[list[Any] | None],
        results: list[Any],
    ) -> Difference | None:
        """Perform operations on a target's object, and return the first difference.

        Args:
            tables: The object.
            operations: The operations.
            expected: After each operation of the session, a copy of all results so far, or None.
                Earlier results may be views, which later operations change.
            results: The results so far; the results of the operations are appended.
        """
        for operation in operations:
            arguments = self._converted(operation.arguments)
            results.append(_outcome_of(getattr(tables, operation.method), arguments))
            all_expected = expected[len(results) - 1]
            if all_expected is None:
                continue
            difference = self._difference(all_expected[-1], results[-1])
            for step, pair in enumerate(zip(all_expected[:-1], results[:-1], strict=True)):
                difference = difference or self._difference(*pair, f"results[{step}]")
            if difference is not None:
                return difference
        return None


def _copies(converter: Converter, values: Arguments) -> Arguments:
    """Return new copies of arguments, whose changes the converter tracks."""
    return {name: converter.convert(value, name) for name, value in values.items()}
