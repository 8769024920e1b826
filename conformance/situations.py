"""The hard cases that a run must have met, and the count of those it met.

A property that never meets its hard case proves nothing. Each contract names its situations; the
checks count them here; at the end of a run one that was met by no example fails it, by name. Under
pytest-xdist each worker counts its own and the controller adds them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Situations: TypeAlias = Mapping[str, Callable[[Any], bool]]
"""Named predicates on a drawn example."""


def pair(first: str, second: str) -> str:
    """Return the name of two situations that must be met by one example.

    >>> pair("padded requests", "a request cut at both ends")
    'padded requests + a request cut at both ends'
    """
    return f"{first} + {second}"


class Ledger:
    """What a run has met: examples by function and target, situations by function.

    Attributes:
        examples: The examples of a function on a target.
        met: The examples of a function that met a situation.
        launches: The kernels that a function's checks launched in the simulator.
        expected: The situations that a function's checks must meet.

    >>> ledger = Ledger()
    >>> ledger.expect("f", ["empty", "long"])
    >>> ledger.count("f", "host", ["long"])
    >>> ledger.unmet("f")
    ['empty']
    """

    def __init__(self) -> None:
        self.examples: Counter[tuple[str, str]] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.launches: Counter[str] = Counter()
        self.expected: dict[str, list[str]] = {}

    def expect(self, function: str, situations: Iterable[str]) -> None:
        """Say that a run of this function's checks must meet these situations."""
        known = self.expected.setdefault(function, [])
        known.extend(name for name in situations if name not in known)

    def count(self, function: str, target: str, situations: Iterable[str]) -> None:
        """Count one example of a function on a target, and the situations it meets."""
        self.examples[function, target] += 1
        for name in situations:
            self.met[function, name] += 1

    def unmet(self, function: str) -> list[str]:
        """Return the expected situations of a function that no example met."""
        return [name for name in self.expected.get(function, ()) if not self.met[function, name]]

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what another process counted, as its `to_record()` gives it."""
        for function, target, number in record["examples"]:
            self.examples[function, target] += number
        for function, name, number in record["met"]:
            self.met[function, name] += number
        for function, number in record["launches"]:
            self.launches[function] += number
        for function, names in record["expected"].items():
            self.expect(function, names)

    def to_record(self) -> dict[str, Any]:
        """Return the counts as lists and dicts of plain values, which travel between processes."""
        return {
            "examples": [[*key, number] for key, number in self.examples.items()],
            "met": [[*key, number] for key, number in self.met.items()],
            "launches": [[*item] for item in self.launches.items()],
            "expected": self.expected,
        }


def situations_met(
    example: object, situations: Situations, pairs: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """Return the names of the situations, and of the pairs of situations, that an example meets.

    >>> situations_met(4, {"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2 == 1})
    ['even']
    """
    met = [name for name, holds in situations.items() if holds(example)]
    return met + [pair(a, b) for a, b in pairs if a in met and b in met]


LEDGER = Ledger()
"""The ledger of this process."""
