"""Lazy finite lists: the length is known, and each item is computed from its index.

Items have a fixed order, by size if they have one.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from conformance.values.call import Call

T = TypeVar("T")
S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class Space(Generic[T]):
    """A finite list of items by index.

    Attributes:
        count: The number of items.
        item: Returns the item of an index in `0 .. count - 1`.
    """

    count: int
    item: Callable[[int], T]

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[T]:
        """Yield the items from `start` up to `stop`, which is the end by default."""
        return map(self.item, range(start, self.count if stop is None else stop))

    def map(self, function: Callable[[T], S]) -> Space[S]:
        """Return the space of a function's results for each item."""
        return Space(self.count, lambda index: function(self.item(index)))

    def starmap(self: Space[tuple[Any, ...]], function: Callable[..., S]) -> Space[S]:
        """Return the space of a function's results for each item, a tuple of its arguments."""
        return self.map(lambda item: function(*item))

    def then(self, inner: Callable[[T], Space[S]]) -> Space[tuple[T, S]]:
        """Return the pairs of an item and an item of the space that depends on it.

        >>> list(values([1, 2]).then(lambda n: ints(1, n)).items())
        [(1, 1), (2, 1), (2, 2)]
        """
        ends = list(itertools.accumulate(inner(item).count for item in self.items()))
        inner_at: tuple[int, Any, Any] = (-1, None, None)  # cached, since indices mostly rise

        def item(index: int) -> tuple[T, S]:
            nonlocal inner_at
            which = bisect.bisect_right(ends, index)
            if which != inner_at[0]:
                outer = self.item(which)
                inner_at = which, outer, inner(outer)
            return inner_at[1], inner_at[2].item(index - (ends[which - 1] if which else 0))

        return Space(ends[-1] if ends else 0, item)


def values(sequence: Sequence[T]) -> Space[T]:
    """Return the space of the values of a sequence.

    >>> list(values("ab").items())
    ['a', 'b']
    """
    return Space(len(sequence), sequence.__getitem__)


BOOLS = values((False, True))


def ints(first: int, last: int) -> Space[int]:
    """Return the space of the ints from the first to the last one, inclusive."""
    return values(range(first, last + 1))


def product(*spaces: Space[Any]) -> Space[tuple[Any, ...]]:
    """Return the space of all tuples of one item of each space; the last changes fastest.

    >>> list(product(values("ab"), values((0, 1))).items())
    [('a', 0), ('a', 1), ('b', 0), ('b', 1)]
    """

    def item(index: int) -> tuple[Any, ...]:
        found = []
        for space in reversed(spaces):
            index, digit = divmod(index, space.count)
            found.append(space.item(digit))
        return tuple(reversed(found))

    return Space(math.prod(space.count for space in spaces), item)


def calls(function: str, **arguments: Space[Any]) -> Space[Call]:
    """Return the space of all calls of a function whose arguments are items of these spaces."""
    return product(*arguments.values()).map(
        lambda found: Call(function, dict(zip(arguments, found, strict=True)))
    )


def chain(*spaces: Space[T]) -> Space[T]:
    """Return the space of the items of several spaces, one space after another.

    >>> list(chain(values("ab"), values("c")).items())
    ['a', 'b', 'c']
    """
    ends = list(itertools.accumulate((space.count for space in spaces), initial=0))

    def item(index: int) -> T:
        which = bisect.bisect_right(ends, index) - 1
        return spaces[which].item(index - ends[which])

    return Space(ends[-1], item)


def sequences(space: Space[T], maximum: int, minimum: int = 0) -> Space[tuple[T, ...]]:
    """Return the space of all tuples of items of a space, the shortest first.

    Args:
        space: The space.
        maximum: The maximum length.
        minimum: The minimum length.

    >>> list(sequences(values("ab"), 2).items())
    [(), ('a',), ('b',), ('a', 'a'), ('a', 'b'), ('b', 'a'), ('b', 'b')]
    """
    return chain(*(product(*[space] * length) for length in range(minimum, maximum + 1)))


def subsets(first: int, size: int) -> Space[tuple[int, ...]]:
    """Return the space of the subsets of `first .. first + size - 1`, each in ascending order.

    >>> list(subsets(1, 2).items())
    [(), (1,), (2,), (1, 2)]
    """
    return Space(1 << size, lambda bits: tuple(first + i for i in range(size) if bits >> i & 1))


@dataclasses.dataclass(frozen=True)
class Scope:
    """Every input of a kind below stated bounds.

    Attributes:
        name: Its name, such as `slots of batches`.
        functions: The functions or classes that its cases call.
        bounds: The cases in words that follow "every": `batch with at most 3 requests, ...`.
        cases: The cases: a call, or an object and its operations (`Session`).
    """

    name: str
    functions: tuple[str, ...]
    bounds: str
    cases: Space[Any]
