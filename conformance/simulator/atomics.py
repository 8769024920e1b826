"""The atomic operations of a simulated kernel."""

import operator
from collections.abc import Callable

from conformance.simulator.memory import CheckedArray
from conformance.simulator.scalars import Namespace, Number
from conformance.simulator.threads import Machine


class Atomics(Namespace):
    """`cuda.atomic`: each returns the old value; another thread may run between any two."""

    _title = "cuda.atomic"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def _update(
        self, array: CheckedArray, index: object, operation: Callable[[Number], object]
    ) -> Number:
        """Replace the element by the operation's result, and let others run."""
        old = array.update(index, operation)
        self._machine.thread.wait(None)
        return old

    def add(self, array: CheckedArray, index: object, value: Number) -> Number:
        """Add the value to the element."""
        return self._update(array, index, lambda old: old + value)

    def sub(self, array: CheckedArray, index: object, value: Number) -> Number:
        """Subtract the value from the element."""
        return self._update(array, index, lambda old: old - value)

    def max(self, array: CheckedArray, index: object, value: Number) -> Number:
        """Store the greater one."""
        return self._update(array, index, lambda old: max(old, value))

    def min(self, array: CheckedArray, index: object, value: Number) -> Number:
        """Store the smaller one."""
        return self._update(array, index, lambda old: min(old, value))

    def and_(self, array: CheckedArray, index: object, value: int) -> Number:
        """Store the bits that both have."""
        return self._update(array, index, lambda old: operator.and_(old, value))

    def or_(self, array: CheckedArray, index: object, value: int) -> Number:
        """Store the bits that either has."""
        return self._update(array, index, lambda old: operator.or_(old, value))

    def xor(self, array: CheckedArray, index: object, value: int) -> Number:
        """Store the bits that one of them has."""
        return self._update(array, index, lambda old: operator.xor(old, value))

    def inc(self, array: CheckedArray, index: object, value: int) -> Number:
        """Add 1 to the element, or store 0 where it has reached the value."""
        return self._update(array, index, lambda old: 0 if old >= value else old + 1)

    def dec(self, array: CheckedArray, index: object, value: int) -> Number:
        """Subtract 1 from the element, or store the value where it is 0 or above the value."""
        return self._update(array, index, lambda old: old - 1 if 0 < old <= value else value)

    def exch(self, array: CheckedArray, index: object, value: Number) -> Number:
        """Store the value."""
        return self._update(array, index, lambda _: value)

    def cas(self, array: CheckedArray, index: object, expected: Number, value: Number) -> Number:
        """Store the value where the element is as expected."""
        return self._update(array, index, lambda old: value if old == expected else old)
