"""Checks that a call never writes to arguments that it may not change, not even temporarily.

Arrays lie in read-only pages, so that writes by compiled code are detected too.
Lists, dicts and objects are compared at each instruction of the implementation's Python code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from conformance.arrays.guard_bands import Array
from conformance.arrays.guarded_memory import GuardedMemory
from conformance.conditions.interleaving import at_each_line, packages_of
from conformance.conditions.known_answer import KnownAnswer
from conformance.conditions.scenarios import Scenario
from conformance.messages.mismatch import Mismatch
from conformance.targets.conversion import Converter
from conformance.targets.target import Target
from conformance.values.differences import Difference, Verdict

READ_ONLY: Final = "with arguments that are read-only"


def read_only_scenarios(expected: KnownAnswer, _: KnownAnswer) -> Iterator[Scenario]:
    """Yield the call with read-only arguments."""
    yield Scenario(READ_ONLY, partial(check_read_only, expected))


def check_read_only(expected: KnownAnswer, target: Target) -> None:
    """Raise `Mismatch` if a call writes an argument that it may not change, or next to one.

    Args:
        expected: A valid call, with its answer.
        target: The target under test.
    """
    __tracebackhide__ = True
    contract = expected.contract
    fields = {field.name: getattr(target, field.name) for field in dataclasses.fields(Target)}
    invocation = expected.invocation(_GuardedTarget(**fields))
    converter, tracker = invocation.converter, invocation.converter.tracker
    changes: list[Difference] = []

    def look() -> None:
        changed = None if changes else tracker.changed_holder(contract.changes)
        if changed is not None:
            changes.append(changed)

    packages = packages_of(target, contract.function)
    faults: list[Difference] = []
    with contextlib.ExitStack() as stack:
        if isinstance(converter, _GuardedConverter):
            faults = stack.enter_context(converter.reading(contract.changes))
        got = at_each_line(
            lambda: expected.run(invocation, READ_ONLY), look, packages, instructions=True
        )
    for difference in (*changes, *faults):
        raise Mismatch(expected.call, target.name, difference, READ_ONLY)
    expected.compare(got, invocation, READ_ONLY)


class _GuardedTarget(Target):
    """A target whose arguments lie in guarded memory, if that is available."""

    def converter(self, **options: Any) -> Converter:
        """Return a new converter, into guarded memory for the CPU on Linux."""
        if self.device != "cpu" or sys.platform != "linux":
            return super().converter(**options)
        return _GuardedConverter(self.implementation, self.device, **options)


class _GuardedConverter(Converter):
    """Copies arguments into guarded memory, each array to the end of its own pages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._memory = GuardedMemory(1 << 30)
        self._pages: dict[int, tuple[int, int]] = {}

    @contextlib.contextmanager
    def reading(self, changes: frozenset[str]) -> Iterator[list[Difference]]:
        """Make arguments read-only inside; yield a list that gets the forbidden access at the end.

        Args:
            changes: The arguments that may be written.
        """
        pages = [
            (memory.path, *self._pages[id(memory.as_numpy)])
            for memory in self.tracker.unwritten(changes)
        ]
        differences: list[Difference] = []
        for _, first, length in pages:
            self._memory.make_read_only(first, length)
        with self._memory.noticing_faults() as faults:
            yield differences
        for fault in faults:
            written = (path for path, first, length in pages if first <= fault < first + length)
            path, got, wanted = next(written, None), "written during the call", "only read"
            if path is None:
                path, got, wanted = "arguments", "accessed out of bounds", "accessed within bounds"
            differences.append(Difference(Verdict.CHANGE, path, None, got, wanted))

    def _copied(self, drawn: Array) -> Array:
        copied, *pages = self._memory.place(drawn, at_end=True)
        self._pages[id(copied)] = pages[0], pages[1]
        return copied
