"""Coverage goals: the hard cases that a run must reach, and how often it reached them.

A property that never reaches its hard cases proves nothing. Each contract declares its coverage
goals, and the checks count them here. The run fails if no example reached a goal, and reports the
goal. Under pytest-xdist, the controller adds up the counts of the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Goals: TypeAlias = Mapping[str, Callable[[Any], bool]]
"""Coverage goals by name: predicates on an example."""


def one_for_each(kinds: Iterable[str], kind: Callable[[Any], str]) -> Goals:
    """Return one goal for each kind: that an example is of this kind.

    >>> list(one_for_each(["decode", "prefill"], str))
    ['a decode', 'a prefill']
    """

    def is_of(name: str) -> Callable[[Any], bool]:
        return lambda example: kind(example) == name

    return {f"a {name}": is_of(name) for name in kinds}


def pair(first: str, second: str) -> str:
    """Return the name of the goal that one example reaches two goals.

    >>> pair("padded requests", "a request cut at both ends")
    'padded requests + a request cut at both ends'
    """
    return f"{first} + {second}"


class Coverage:
    """The coverage of a run: examples by function and target, goals by function.

    Attributes:
        examples: The number of examples of a function on a target.
        reached: The number of examples of a function that reached a goal.
        unsupported: The examples of a function on a target that were not tried, by the reason.
        launches: The number of kernels that a function's checks launched in the simulator.
        expected: The goals that a function's checks must reach.

    >>> coverage = Coverage()
    >>> coverage.expect("f", ["empty", "long"])
    >>> coverage.count("f", "host", ["long"])
    >>> coverage.unreached("f")
    ['empty']
    """

    def __init__(self) -> None:
        self.examples: Counter[tuple[str, str]] = Counter()
        self.reached: Counter[tuple[str, str]] = Counter()
        self.unsupported: Counter[tuple[str, str, str]] = Counter()
        self.launches: Counter[str] = Counter()
        self.expected: dict[str, list[str]] = {}

    def expect(self, function: str, goals: Iterable[str]) -> None:
        """Require that the checks of a function reach some goals."""
        known = self.expected.setdefault(function, [])
        known.extend(name for name in goals if name not in known)

    def count(self, function: str, target: str, goals: Iterable[str]) -> None:
        """Count one example of a function on a target, and the goals that it reached."""
        self.examples[function, target] += 1
        for name in goals:
            self.reached[function, name] += 1

    def note_unsupported(self, function: str, target: str, reason: str) -> None:
        """Count an example as not supported, which was counted as tried before."""
        self.examples[function, target] -= 1
        self.unsupported[function, target, reason] += 1

    def unsupported_reasons(self, function: str, target: str) -> list[str]:
        """Return why examples of a function on a target were not tried."""
        return [reason for *key, reason in self.unsupported if key == [function, target]]

    def unreached(self, function: str) -> list[str]:
        """Return the goals of a function that no example reached."""
        return [
            name for name in self.expected.get(function, ()) if not self.reached[function, name]
        ]

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the counts of another process, from its `to_record()`."""
        for function, target, number in record["examples"]:
            self.examples[function, target] += number
        for function, name, number in record["met"]:
            self.reached[function, name] += number
        for function, target, reason, number in record["unsupported"]:
            self.unsupported[function, target, reason] += number
        for function, number in record["launches"]:
            self.launches[function] += number
        for function, names in record["expected"].items():
            self.expect(function, names)

    def take(self) -> dict[str, Any]:
        """Return the counts as plain values, and reset them to zero.

        >>> coverage = Coverage()
        >>> coverage.count("f", "host", [])
        >>> coverage.take()["examples"], coverage.take()["examples"]
        ([['f', 'host', 1]], [])
        """
        record = {**self.to_record(), "expected": {}}
        for counter in (self.examples, self.reached, self.unsupported, self.launches):
            counter.clear()
        return record

    def to_record(self) -> dict[str, Any]:
        """Return the counts as plain values, which can be sent between processes."""
        return {
            "examples": [[*key, number] for key, number in self.examples.items()],
            "met": [[*key, number] for key, number in self.reached.items()],
            "unsupported": [[*key, number] for key, number in self.unsupported.items()],
            "launches": [[*item] for item in self.launches.items()],
            "expected": self.expected,
        }


def reached_goals(
    example: object, goals: Goals, pairs: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """Return the names of the goals, and of the pairs of goals, that an example reaches.

    >>> reached_goals(4, {"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2 == 1})
    ['even']
    """
    reached = [name for name, holds in goals.items() if holds(example)]
    return reached + [pair(a, b) for a, b in pairs if a in reached and b in reached]


COVERAGE = Coverage()
"""The coverage of this process."""
