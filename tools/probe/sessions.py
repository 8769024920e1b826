"""Stateful cases of `BlockTables`: valid operations, with disturbances between them."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import numpy as np
import torch

import fast
import reference
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL, REAL
from conformance.execution.interrupts import Interrupter
from conformance.strategies.block_table import Operation, Session, block_tables_sessions
from conformance.values.call import Call
from conformance.values.comparison import first_difference
from conformance.vectors.drawing import drawn
from tools.probe.array_values import other_array
from tools.probe.calling import Outcome, call_fast, call_reference, copy_arguments
from tools.probe.case import Case, named, refused
from tools.probe.checks import check_error, check_resources, check_unchanged, path_of
from tools.probe.sites import replaced_at, sites_of
from tools.probe.strange_objects import other_value
from tools.probe.target import REFERENCE, ProbedTarget
from tools.probe.valid_calls import pickled
from tools.probe.violation import Finding, innermost_frame

NOTHING_CHANGES: Final = Contract("BlockTables", lambda _: None, {})  # type: ignore[arg-type, return-value]


@lru_cache(maxsize=1)
def _sessions(pool: int) -> list[Session]:
    found = drawn(block_tables_sessions(MINIMAL), 8, f"sessions {pool}")
    return found + drawn(block_tables_sessions(REAL), 1, f"real sessions {pool}")


def session(case: Case) -> Iterator[Finding]:
    """Check that both twins return the same from every operation, with disturbances between."""
    chosen = case.random.choice(_sessions(case.pool.number))
    case.call = chosen.constructor
    tables = _Tables(case, chosen)
    for operation in chosen.operations:
        findings = list(tables.between(operation))
        findings += tables.apply(operation)
        yield from findings
        if findings:
            return


class _Tables:
    """The object under test, and `reference`'s object as its model.

    Attributes:
        model: The object of `reference`.
        actual: The object under test.
        results: The last results of both.
    """

    def __init__(self, case: Case, chosen: Session) -> None:
        self.case, self.random = case, case.random
        arguments = dict(chosen.constructor.arguments)
        self.model: Any = reference.BlockTables(**arguments)
        self.actual: Any = case.target.lookup("BlockTables")(**arguments)
        self.num_rows = arguments["max_num_reqs"]
        self.results: list[tuple[Any, Any]] = []

    def between(self, operation: Operation) -> Iterator[Finding]:
        """Disturb the object before an operation, or do nothing."""
        if self.random.random() < 0.4:
            others = (self._write_into_results, self._interrupt, self._refuse, self._copy)
            yield from self.random.choice(others)(operation)

    def apply(self, operation: Operation) -> Iterator[Finding]:
        """Apply a valid operation to both, and compare their results."""
        checked = self.random.random() < 0.4
        expected, got = self._call_both(operation, checked=checked)
        yield from check_resources(got)
        if expected.error is not None:  # an accepted mutated operation made this one invalid
            if checked and type(got.error) is not type(expected.error):
                yield _disagreement(expected, got)
            return
        if got.error is not None:
            yield from named(operation.method, refused(got.error))
            return
        difference = first_difference(expected.result, got.result)
        if difference is not None:
            where = path_of(difference.line)
            yield f"wrong result ({operation.method})", where, difference.line
        yield from check_unchanged(NOTHING_CHANGES, got)
        self.results = [*self.results[-2:], (expected.result, got.result)]

    def _write_into_results(self, _: Operation) -> Iterator[Finding]:
        """Write into the last results, as runners do."""
        yield from ()
        for expected, got in self.results[-1:]:
            is_one = not isinstance(expected, list | tuple)
            for array, tensor in [(expected, got)] if is_one else zip(expected, got, strict=True):
                if array is not None and array.size:
                    at = self.random.randrange(array.shape[0])
                    array[at] = tensor[at] = -1

    def _refuse(self, operation: Operation) -> Iterator[Finding]:
        """Call with mutated arguments: the twins must agree, and a refusal must change nothing."""
        valid = Call(f"BlockTables.{operation.method}", dict(operation.arguments))
        site = self.random.choice(sites_of(valid))
        value: Any
        if isinstance(site.value, np.ndarray):
            value = other_array(self.random, site.value)
        else:
            value = other_value(self.random, site.value, site.path)
        call = self.case.call = replaced_at(valid, site, value)
        before = copy.deepcopy(self.model)
        expected = _call_model(self.model, operation.method, call)
        got = self._call_actual(operation.method, call, checked=True)
        yield from check_resources(got)
        yield from check_error(call, got, valid)
        if expected.error is not None:
            self.model = before
        if (expected.error is None) != (got.error is None):
            yield _disagreement(expected, got)

    def _copy(self, _: Operation) -> Iterator[Finding]:
        """Continue with a copy of the object, if it can be copied."""
        make = self.random.choice((copy.deepcopy, pickled, _pickled_by_multiprocessing))
        try:
            self.actual = make(self.actual)
        except TypeError:
            return
        except Exception as error:  # noqa: BLE001  # is the finding
            yield f"{make.__name__} fails", innermost_frame(error.__traceback__), repr(error)
            return
        self.model = copy.deepcopy(self.model)
        self.results.clear()

    def _interrupt(self, operation: Operation) -> Iterator[Finding]:
        """Check that an interrupted operation has happened completely or not at all."""
        call = self.case.call = Call(f"BlockTables.{operation.method}", dict(operation.arguments))
        after = copy.deepcopy(self.model)
        _call_model(after, operation.method, call)
        invocation = copy_arguments(self._target_of(operation.method), call)
        try:
            is_interrupted = Interrupter(fast, self.random.randint(1, 300)).run(invocation.run)
        except Exception:  # noqa: BLE001  # `apply` reports it
            return
        rows = torch.arange(self.num_rows, dtype=torch.int32)
        found = self.actual.gather_block_tables(rows)
        states = [after, self.model] if is_interrupted else [after]
        differences = []
        for state in states:
            expected = copy.deepcopy(state).gather_block_tables(rows.numpy())
            difference = first_difference(expected, found)
            if difference is None:
                break
            differences.append(difference.line)
        else:
            kind = "half done after an interrupt" if is_interrupted else "wrong result"
            yield f"{kind} ({operation.method})", "", "; ".join(differences)
            return
        self.model = state
        self.model.gather_block_tables(rows.numpy())
        self.results.clear()

    def _call_both(self, operation: Operation, *, checked: bool) -> tuple[Outcome, Outcome]:
        call = Call(f"BlockTables.{operation.method}", dict(operation.arguments))
        self.case.call = call
        expected = _call_model(self.model, operation.method, call)
        return expected, self._call_actual(operation.method, call, checked=checked)

    def _call_actual(self, method: str, call: Call, *, checked: bool) -> Outcome:
        return call_fast(self._target_of(method), call, checked=checked)

    def _target_of(self, method: str) -> ProbedTarget:
        """Return the target whose only function is a method of the object under test."""
        return dataclasses.replace(self.case.target, method=getattr(self.actual, method))


def _call_model(tables: Any, method: str, call: Call) -> Outcome:
    target = dataclasses.replace(REFERENCE, method=getattr(tables, method))
    return call_reference(call, seconds=0, target=target) or Outcome(error=MemoryError())


def _disagreement(expected: Outcome, got: Outcome) -> Finding:
    return "twins disagree", "", f"{got.error!r}; reference: {expected.error!r}"


def _pickled_by_multiprocessing(value: Any) -> Any:
    written = io.BytesIO()
    ForkingPickler(written).dump(value)
    return pickle.loads(written.getvalue())  # noqa: S301  # it was pickled just now
