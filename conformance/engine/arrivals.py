"""When requests arrive: an engine's simulated clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Arrivals(Generic[Item]):
    """Items that arrive over simulated time.

    Args:
        items: Pairs of an arrival time and an item, sorted by time.

    Attributes:
        clock: The time, in any unit; the caller advances it.

    Example:
        >>> arrivals = Arrivals([(0, "a"), (2, "b"), (9, "c")])
        >>> arrivals.receive(is_idle=True)
        ['a']
        >>> arrivals.clock += 3
        >>> arrivals.receive(is_idle=False), arrivals.receive(is_idle=True), arrivals.clock
        (['b'], ['c'], 9)
    """

    def __init__(self, items: Iterable[tuple[float, Item]]) -> None:
        self.clock = 0.0
        self._items = deque(items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def receive(self, *, is_idle: bool) -> list[Item]:
        """Return the items that arrived since the last call; if idle, advance to the next one."""
        if is_idle and self._items:
            self.clock = max(self.clock, self._items[0][0])
        received = []
        while self._items and self._items[0][0] <= self.clock:
            received.append(self._items.popleft()[1])
        return received
