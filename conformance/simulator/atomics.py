"""The atomic operations of a simulated kernel."""

import operator
from collections.abc import Callable
from typing import Final

from conformance.simulator.memory import CheckedArray
from conformance.simulator.scalars import Namespace, Number
from conformance.simulator.threads import Machine

OPERATIONS: Final[dict[str, Callable[..., Number]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": max,
    "min": min,
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "inc": lambda old, limit: 0 if old >= limit else old + 1,
    "dec": lambda old, limit: old - 1 if 0 < old <= limit else limit,
    "exch": lambda _, value: value,
    "cas": lambda old, expected, value: value if old == expected else old,
}
"""The value that each operation stores, computed from the old element and the arguments."""


class Atomics(Namespace):
    """`cuda.atomic`: operations on an element of an array, which return the old value.

    Another thread may run between two operations.
    """

    _title = "cuda.atomic"

    def __init__(self, machine: Machine) -> None:
        for name, operation in OPERATIONS.items():
            setattr(self, name, _operation(machine, operation))


def _operation(machine: Machine, operation: Callable[..., Number]) -> Callable[..., Number]:
    """Return the method of an operation."""

    def update(array: CheckedArray, index: object, *values: Number) -> Number:
        old = array.update(index, lambda old: operation(old, *values))
        machine.thread.wait(None)
        return old

    return update
