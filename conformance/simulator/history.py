"""Which thread touched which element when, and whether two such accesses are ordered.

Two accesses are ordered if they are by one thread; by threads of one block, with a barrier between
them; or by threads of one warp, with a `syncwarp` of both between them. Nothing orders the blocks
of a launch. Fences and atomics that a thread waits on order nothing, nor do the other warp
operations, for which CUDA does not guarantee an order either.
"""

from typing import Final, NamedTuple, TypeAlias

WARP_SIZE: Final = 32

_NOTHING_SEEN: Final = (0,) * WARP_SIZE


class Dim3(NamedTuple):
    """A size or an index in three dimensions, as `cuda.threadIdx` is."""

    x: int
    y: int
    z: int


class AccessEpoch:
    """The execution of one thread between two of its synchronisations.

    Attributes:
        block: The block's index; one object for all moments of the block.
        index: The thread's index in the block.
        thread: The thread's number in the block, x running fastest.
        epoch: How many barriers the block has passed.
        clock: How many times the thread took part in a syncwarp in this epoch, from 1.
        seen: For each lane of the warp, its last clock that a syncwarp has ordered before this.
    """

    __slots__ = ("block", "clock", "epoch", "index", "seen", "thread")

    def __init__(self, block: Dim3, index: Dim3, thread: int, epoch: int = 0) -> None:
        self.block = block
        self.index = index
        self.thread = thread
        self.epoch = epoch
        self.clock = 1
        self.seen = _NOTHING_SEEN

    def precedes(self, later: "AccessEpoch") -> bool:
        """Return whether this moment is ordered before one that was reached after it."""
        if self.block is not later.block:
            return False
        if self.epoch != later.epoch or self.thread == later.thread:
            return True
        if self.thread // WARP_SIZE != later.thread // WARP_SIZE:
            return False
        return later.seen[self.thread % WARP_SIZE] >= self.clock

    def conflict(self, now: "AccessEpoch") -> "AccessEpoch | None":
        """Return this moment if it is not ordered before now."""
        return None if self.precedes(now) else self

    def after_barrier(self) -> "AccessEpoch":
        """Return the thread's next moment, after a barrier of its block."""
        return AccessEpoch(self.block, self.index, self.thread, self.epoch + 1)


def join_warp(moments: list[AccessEpoch]) -> list[AccessEpoch]:
    """Return the next moments of the threads that took part in one syncwarp, in the same order."""
    seen = [max(clocks) for clocks in zip(*(moment.seen for moment in moments), strict=True)]
    for moment in moments:
        seen[moment.thread % WARP_SIZE] = moment.clock
    after = []
    for moment in moments:
        following = AccessEpoch(moment.block, moment.index, moment.thread, moment.epoch)
        following.clock = moment.clock + 1
        following.seen = tuple(seen)
        after.append(following)
    return after


class _Moments:
    """Unordered moments with the same kind of access to an element; a later access must follow all.

    Blocks run one after another, so one moment represents all those of the blocks that have ended.
    Of each thread of the running block, only the last moment is needed.
    """

    __slots__ = ("_block", "_moments", "_of_ended_block")

    def __init__(self, first: AccessEpoch) -> None:
        self._block = first.block
        self._moments = {first.thread: first}
        self._of_ended_block: AccessEpoch | None = None

    def add(self, now: AccessEpoch) -> None:
        """Add a moment of the running block."""
        if self._block is not now.block:
            self._of_ended_block = next(iter(self._moments.values()))
            self._block = now.block
            self._moments = {}
        self._moments[now.thread] = now

    def conflict(self, now: AccessEpoch) -> AccessEpoch | None:
        """Return a moment that is not ordered before now."""
        if self._of_ended_block is not None:
            return self._of_ended_block
        return next((each for each in self._moments.values() if not each.precedes(now)), None)


_Accesses: TypeAlias = dict[int, AccessEpoch | _Moments]


class Conflict(NamedTuple):
    """An earlier access that makes the present one a race."""

    access: str
    moment: AccessEpoch


class History:
    """The accesses to a piece of memory, by the address of the element.

    Each method checks whether the access is ordered after the earlier ones that it conflicts with,
    and records it if so. A load conflicts with stores and atomics, a store with everything, and
    an atomic with all but atomics.
    """

    __slots__ = ("_atomics", "_loads", "_stores")

    def __init__(self) -> None:
        self._loads: _Accesses = {}
        self._stores: dict[int, AccessEpoch] = {}  # the last one: all others are ordered before it
        self._atomics: _Accesses = {}

    def is_written(self, address: int) -> bool:
        """Return whether anything was ever stored there."""
        return address in self._stores

    def load(self, address: int, now: AccessEpoch) -> Conflict | None:
        """Record a load, or return the access that it conflicts with."""
        stored = self._stores.get(address)
        if stored is not None and stored is not now and not stored.precedes(now):
            return Conflict("store", stored)
        if self._atomics and (conflict := _conflict(self._atomics, address, now)):
            return Conflict("atomic", conflict)
        _record(self._loads, address, now)
        return None

    def store(self, address: int, now: AccessEpoch) -> Conflict | None:
        """Record a store, or return the access that it conflicts with."""
        stored = self._stores.get(address)
        if stored is not None and stored is not now and not stored.precedes(now):
            return Conflict("store", stored)
        if self._atomics and (conflict := _conflict(self._atomics, address, now)):
            return Conflict("atomic", conflict)
        if conflict := _conflict(self._loads, address, now):
            return Conflict("load", conflict)
        # Order is transitive: an access ordered after this store is ordered after earlier ones.
        self._stores[address] = now
        self._loads.pop(address, None)
        self._atomics.pop(address, None)
        return None

    def atomic(self, address: int, now: AccessEpoch) -> Conflict | None:
        """Record an atomic operation, or return the access that it conflicts with."""
        stored = self._stores.get(address)
        if stored is not None and stored is not now and not stored.precedes(now):
            return Conflict("store", stored)
        if conflict := _conflict(self._loads, address, now):
            return Conflict("load", conflict)
        _record(self._atomics, address, now)
        return None


def _conflict(accesses: _Accesses, address: int, now: AccessEpoch) -> AccessEpoch | None:
    """Return an access to the element that is not ordered before now."""
    seen = accesses.get(address)
    return None if seen is None else seen.conflict(now)


def _record(accesses: _Accesses, address: int, now: AccessEpoch) -> None:
    """Add an access to the element to those that later ones must be ordered after."""
    seen = accesses.get(address)
    if seen is now:
        return
    if seen is None:
        accesses[address] = now
    elif isinstance(seen, _Moments):
        seen.add(now)
    elif seen.precedes(now):
        accesses[address] = now
    else:
        moments = accesses[address] = _Moments(seen)
        moments.add(now)
