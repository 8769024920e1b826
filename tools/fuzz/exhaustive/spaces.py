"""Finite lists that are never built: with a known length, and each item computed from its index.

Items have a fixed order, by size if they have one.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


class Space(ABC, Generic[T]):
    """A finite list of items by index."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of items."""

    @abstractmethod
    def item(self, index: int) -> T:
        """Return the item of an index in `0 .. count - 1`."""

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[T]:
        """Yield the items from `start` up to `stop`, which is the end by default."""
        for index in range(start, self.count if stop is None else stop):
            yield self.item(index)

    def map(self, function: Callable[[T], S]) -> Space[S]:
        """Return the space of what a function makes of each item."""
        return Mapped(self, function)

    def then(self, inner: Callable[[T], Space[S]]) -> Space[tuple[T, S]]:
        """Return the pairs of an item and an item of the space that depends on it."""
        return Dependent(self, inner)


@dataclasses.dataclass(frozen=True)
class Values(Space[T]):
    """The values of a sequence.

    >>> list(Values("ab").items())
    ['a', 'b']
    """

    values: Sequence[T]

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.values)

    def item(self, index: int) -> T:
        """Return a value."""
        return self.values[index]


class Mapped(Space[S]):
    """What a function makes of each item of a space."""

    def __init__(self, space: Space[T], function: Callable[[T], S]) -> None:
        self._space = space
        self._function = function

    @property
    def count(self) -> int:
        """The number of items."""
        return self._space.count

    def item(self, index: int) -> S:
        """Return what the function makes of an item."""
        return self._function(self._space.item(index))


class Product(Space[tuple[Any, ...]]):
    """All tuples of one item of each space; the last changes fastest.

    >>> list(Product(Values("ab"), Values((0, 1))).items())
    [('a', 0), ('a', 1), ('b', 0), ('b', 1)]
    """

    def __init__(self, *spaces: Space[Any]) -> None:
        self._factors = [(space, space.count) for space in spaces]

    @cached_property
    def count(self) -> int:
        """The product of the counts."""
        return math.prod(count for _, count in self._factors)

    def item(self, index: int) -> tuple[Any, ...]:
        """Return the tuple of an index."""
        found = []
        for factor, count in reversed(self._factors):
            index, digit = divmod(index, count)
            found.append(factor.item(digit))
        found.reverse()
        return tuple(found)


class Chain(Space[T]):
    """The items of several spaces, one space after another.

    >>> list(Chain(Values("ab"), Values("c")).items())
    ['a', 'b', 'c']
    """

    def __init__(self, *spaces: Space[T]) -> None:
        self._spaces = spaces
        self._ends = list(itertools.accumulate(space.count for space in spaces))

    @property
    def count(self) -> int:
        """The sum of the counts."""
        return self._ends[-1] if self._ends else 0

    def item(self, index: int) -> T:
        """Return the item of an index."""
        which = bisect.bisect_right(self._ends, index)
        before = self._ends[which - 1] if which else 0
        return self._spaces[which].item(index - before)


class Sequences(Chain[tuple[T, ...]]):
    """All tuples of at least so many and at most so many items of a space, the shortest first.

    >>> list(Sequences(Values("ab"), 2).items())
    [(), ('a',), ('b',), ('a', 'a'), ('a', 'b'), ('b', 'a'), ('b', 'b')]
    """

    def __init__(self, space: Space[T], maximum: int, minimum: int = 0) -> None:
        super().__init__(*(Product(*[space] * length) for length in range(minimum, maximum + 1)))


class Dependent(Space[tuple[T, S]]):
    """All pairs of an item and an item of the space that depends on it.

    >>> list(Dependent(Values((1, 2)), lambda n: Values(range(n))).items())
    [(1, 0), (2, 0), (2, 1)]
    """

    def __init__(self, outer: Space[T], inner: Callable[[T], Space[S]]) -> None:
        self._outer = outer
        self._inner = inner
        self._outer_index = -1
        self._pair: Any = None

    @cached_property
    def _ends(self) -> list[int]:
        counts = (self._inner(item).count for item in self._outer.items())
        return list(itertools.accumulate(counts))

    @property
    def count(self) -> int:
        """The sum of the counts of the inner spaces."""
        return self._ends[-1] if self._ends else 0

    def item(self, index: int) -> tuple[T, S]:
        """Return the pair of an index."""
        which = bisect.bisect_right(self._ends, index)
        if which != self._outer_index:
            outer = self._outer.item(which)
            self._pair = outer, self._inner(outer)
            self._outer_index = which
        outer, inner = self._pair
        return outer, inner.item(index - (self._ends[which - 1] if which else 0))


class Subsets(Space[tuple[int, ...]]):
    """The subsets of `first .. first + size - 1`, each in ascending order.

    >>> list(Subsets(1, 2).items())
    [(), (1,), (2,), (1, 2)]
    """

    def __init__(self, first: int, size: int) -> None:
        self._first = first
        self._size = size

    @property
    def count(self) -> int:
        """Two to the power of the size."""
        return 1 << self._size

    def item(self, index: int) -> tuple[int, ...]:
        """Return the subset whose members are the bits of the index."""
        return tuple(self._first + i for i in range(self._size) if index >> i & 1)


def renamed_once(length: int, blocks: int) -> Values[tuple[int, ...]]:
    """Return the ways to write blocks in so many places, each once up to renaming of the blocks.

    Blocks are numbered from 1 in the order in which they first occur.

    Args:
        length: The number of places.
        blocks: The most blocks that differ.

    >>> renamed_once(3, 3).values
    [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (1, 2, 3)]
    """
    found: list[tuple[int, ...]] = [()]
    for _ in range(length):
        found = [
            (*labels, label)
            for labels in found
            for label in range(1, min(max(labels, default=0) + 1, blocks) + 1)
        ]
    return Values(found)
