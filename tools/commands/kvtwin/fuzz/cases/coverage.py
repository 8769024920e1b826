"""Kinds of coverage, and the events that sources observe in cases.

An event is a tuple whose first element is its kind. `goal` and `pair` events come from the
harness' own coverage goals, and `size` events from the batch of a case, in bands of powers of two.
`branch` events come from `branches`. A new kind is another `Source`.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from conformance.contracts.check import Check
from conformance.strategies.batch import Batch
from conformance.values.parts import children, is_object

Event = tuple[str, ...]

PLURALS: Final = {
    "goal": "goals",
    "pair": "pairs of goals",
    "size": "sizes",
    "branch": "branches",
}
"""The kinds of coverage as the reports call them."""


def goals_of(check: Check) -> set[Event]:
    """Return the events of the coverage goals that a check declares."""
    return {("goal", check.function, name) for name in check.goals}


class Source:
    """Observes a slice of cases of one property."""

    def begin(self, prop: str) -> None:
        """Begin to observe: a slice of the property of this name starts."""

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Observe a case that ran, by its example and the goals that it met.

        Returns:
            Whether the case covered something that no case of its property covered before in this
            process, so that its input is worth varying; False if the source cannot tell.
        """
        raise NotImplementedError

    def end(self) -> Counter[Event]:
        """Return the events of the slice, with the number of cases in which each occurred.

        A kind that is not observed by case counts 1 for a slice.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop observing for good."""


class GoalsAndSizes(Source):
    """Goals that cases met, pairs of them that one case met, and sizes of batches in bands."""

    def __init__(self) -> None:
        self._met: Counter[tuple[str, frozenset[str]]] = Counter()
        self._sizes: Counter[Event] = Counter()

    def see(self, function: str, goals: Sequence[str], example: Any) -> bool:
        """Count the goals of a case, and the sizes of its batch, if it has one."""
        self._met[function, frozenset(goals)] += 1
        batch = batch_of(example)
        if batch is not None:
            for axis, size in sizes_of(batch).items():
                self._sizes["size", function, f"{axis} {band(size)}"] += 1
        return False

    def end(self) -> Counter[Event]:
        """Return the events of the slice, and begin again."""
        found, self._sizes = self._sizes, Counter()
        for (function, names), number in self._met.items():
            for name in names:
                found["goal", function, name] += number
            for first, second in itertools.combinations(sorted(names), 2):
                found["pair", function, first, second] += number
        self._met.clear()
        return found


def batch_of(example: Any, depth: int = 0) -> Batch | None:
    """Return the batch that an example was generated from, the largest if there are several."""
    found = example if isinstance(example, Batch) else getattr(example, "source", None)
    if isinstance(found, Batch):
        return found
    inner = children(example) if depth < 3 and is_object(example) else {}
    batches = filter(None, (batch_of(value, depth + 1) for value in inner.values()))
    return max(batches, key=lambda batch: batch.num_reqs, default=None)


def sizes_of(batch: Batch) -> dict[str, int]:
    """Return the sizes of a batch, by axis."""
    return {
        "requests": batch.num_reqs,
        "tokens": batch.num_tokens,
        "longest query": max(batch.query_lens, default=0),
        "longest context": max(batch.num_computed_tokens, default=0),
        "widest row": max(map(len, batch.rows), default=0),
        "block size": batch.layout.block_size,
    }


def band(size: int) -> str:
    """Return the band of powers of two that a size lies in.

    >>> [band(size) for size in (0, 1, 2, 3, 4, 1000)]
    ['0', '1', '2..3', '2..3', '4..7', '512..1023']
    """
    minimum = 1 << (size.bit_length() - 1) if size else 0
    return f"{minimum}..{2 * minimum - 1}" if minimum > 1 else str(minimum)


@functools.cache
def short_path(file: str) -> str:
    """Return a path without the folders above its package.

    >>> short_path("/home/me/fast/slots.py")
    'fast/slots.py'
    """
    return "/".join(Path(file).parts[-2:])
