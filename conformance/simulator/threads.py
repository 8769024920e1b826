"""Schedules the blocks and threads of a simulated launch.

Every thread of a block runs in a greenlet until it synchronises: at a barrier, of its block or its
warp, or after an atomic operation (so that other threads can run between two of them). Then the
threads that can continue do so. Blocks run one after another. The seed decides both orders.
"""

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no types

from conformance.simulator.errors import BarrierError
from conformance.simulator.history import WARP_SIZE, AccessEpoch, Dim3, join_warp
from conformance.simulator.memory import CheckedArray, Clock


class Site(NamedTuple):
    """A call in a kernel's source: two calls on one line are two sites."""

    file: str
    function: str
    line: int
    instruction: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclasses.dataclass(frozen=True, slots=True)
class BarrierWait:
    """A thread waits for all threads of its block.

    Attributes:
        site: The call; all threads must wait at the same one.
        value: The value that the thread passes, for the others to count.
    """

    site: Site
    value: object = None

    def __str__(self) -> str:
        return f"syncthreads ({self.site})"


@dataclasses.dataclass(frozen=True, slots=True)
class WarpWait:
    """A thread waits for the threads of its warp that are in its mask.

    Attributes:
        mask: Bit i is lane i; all threads must pass the same mask.
    """

    mask: int

    def __str__(self) -> str:
        return f"syncwarp of lanes 0x{self.mask:08x}"


Wait: TypeAlias = BarrierWait | WarpWait


class Thread:
    """A thread of the block that is running.

    Attributes:
        block: Its block.
        index: Its index in the block, as `cuda.threadIdx`.
        number: Its number in the block, x running fastest.
        lane: Its lane in its warp.
        moment: Its current moment, for the order of its accesses.
        waiting: The barrier that it waits for; None if it can continue.
        reply: The result of its wait: the values that threads passed, by number.
        has_ended: Whether it has returned.
        worker: The greenlet that it runs in; None until it runs.
    """

    __slots__ = (
        "block",
        "has_ended",
        "index",
        "lane",
        "moment",
        "number",
        "reply",
        "waiting",
        "worker",
    )

    def __init__(self, block: "Block", number: int) -> None:
        width, height, _ = block.machine.threads
        self.block = block
        self.number = number
        self.index = Dim3(number % width, number // width % height, number // (width * height))
        self.lane = number % WARP_SIZE
        self.moment = AccessEpoch(block.index, self.index, number)
        self.waiting: Wait | None = None
        self.reply: dict[int, Any] = {}
        self.has_ended = False
        self.worker: greenlet | None = None

    def wait(self, wait: Wait | None) -> dict[int, Any]:
        """Let other threads run until this wait has ended; only once if it is None.

        Call it in this thread. It returns the values that the threads passed, by number.
        """
        self.waiting = wait
        self.block.machine.scheduler.switch()
        return self.reply


class Machine:
    """A launch: the state that all its blocks and threads share.

    Attributes:
        name: The kernel's name, for messages.
        grid: How many blocks.
        threads: How many threads in each block.
        random: Decides every order.
        clock: The moment of the thread that is running.
        thread: The thread that is running.
        scheduler: The greenlet that decides which thread runs.
    """

    __slots__ = (
        "_idle",
        "_workers",
        "clock",
        "grid",
        "name",
        "random",
        "scheduler",
        "thread",
        "threads",
    )

    thread: Thread

    def __init__(self, name: str, grid: Dim3, threads: Dim3, seed: int) -> None:
        self.name = name
        self.grid = grid
        self.threads = threads
        self.random = random.Random(seed)  # noqa: S311  # an order of threads, no secret
        self.clock = Clock()
        self.scheduler = getcurrent()
        self._workers: list[greenlet] = []
        self._idle: list[greenlet] = []

    def run(self, function: Callable[..., object], args: Sequence[object]) -> None:
        """Run all blocks, each to its end."""
        blocks = [Dim3(x, y, z) for z, y, x in itertools.product(*map(range, self.grid[::-1]))]
        self.random.shuffle(blocks)
        work = functools.partial(self._work, function, args)
        try:
            for index in blocks:
                Block(self, index).run(work)
        finally:
            for worker in self._workers:
                if not worker.dead:
                    worker.throw()  # end it, wherever it is

    def resume(self, thread: Thread, work: Callable[[], object]) -> None:
        """Run a thread until it waits or returns; called by the scheduler."""
        self.thread = thread
        self.clock.moment = thread.moment
        if thread.worker is None:
            if not self._idle:
                self._idle.append(greenlet(work))
                self._workers.append(self._idle[-1])
            thread.worker = self._idle.pop()
        thread.worker.switch()

    def _work(self, function: Callable[..., object], args: Sequence[object]) -> None:
        """Run threads, one after another: a new greenlet takes 7 us, a reused one 0.3."""
        while True:
            thread = self.thread
            result = function(*args)
            if result is not None:
                raise TypeError(f"a kernel returns nothing, but this one returned {result!r}")
            thread.has_ended = True
            self._idle.append(thread.worker)
            self.scheduler.switch()


class Block:
    """A block of threads, run to its end.

    Attributes:
        machine: The launch.
        index: Its index in the grid, as `cuda.blockIdx`.
        threads: All of them, in order.
        shared: Its shared arrays, by the call that made them.
    """

    __slots__ = ("index", "machine", "shared", "threads")

    def __init__(self, machine: Machine, index: Dim3) -> None:
        self.machine = machine
        self.index = index
        self.shared: dict[Site, CheckedArray] = {}
        self.threads = [Thread(self, number) for number in range(math.prod(machine.threads))]

    def run(self, work: Callable[[], object]) -> None:
        """Run all threads to their ends.

        Raises:
            BarrierError: Not all threads reach a barrier, or not the same one.
            Exception: Any exception of a thread; its message has the kernel, block and thread.
        """
        ready = list(self.threads)
        while ready:
            self.machine.random.shuffle(ready)
            for thread in ready:
                try:
                    self.machine.resume(thread, work)
                except Exception as error:
                    _name_thread(error, thread)
                    raise
            ready = [each for each in ready if each.waiting is None and not each.has_ended]
            ready = ready or self._release_warps() or self._release_barrier()

    def _release_warps(self) -> list[Thread]:
        """Release the threads whose lanes have all reached their syncwarp; return them."""
        groups: dict[tuple[int, int], list[Thread]] = {}
        for thread in self.threads:
            if isinstance(thread.waiting, WarpWait):
                key = (thread.number // WARP_SIZE, thread.waiting.mask)
                groups.setdefault(key, []).append(thread)
        released: list[Thread] = []
        for (warp, mask), waits in groups.items():
            lanes = self.threads[warp * WARP_SIZE : (warp + 1) * WARP_SIZE]
            named = [each for each in lanes if mask >> each.lane & 1 and not each.has_ended]
            if len(named) != len(waits):
                continue  # some lanes have not reached it
            _exchange(named, {})
            moments = join_warp([each.moment for each in named])
            for thread, moment in zip(named, moments, strict=True):
                thread.moment = moment
            released += named
        return released

    def _release_barrier(self) -> list[Thread]:
        """Release all threads if all have reached the same barrier; return them."""
        if all(each.has_ended for each in self.threads):
            return []
        waits = [each.waiting for each in self.threads if isinstance(each.waiting, BarrierWait)]
        if len(waits) < len(self.threads) or len({wait.site for wait in waits}) > 1:
            raise BarrierError(f"{self._where()}: {_describe(self.threads)}")
        _exchange(self.threads, {number: wait.value for number, wait in enumerate(waits)})
        for thread in self.threads:
            thread.moment = thread.moment.after_barrier()
        return list(self.threads)

    def _where(self) -> str:
        """Return the kernel's name and the block's index."""
        return f"kernel {self.machine.name}, block {tuple(self.index)}"


def _describe(threads: Iterable[Thread]) -> str:
    """Describe the states of threads, one part for each state."""
    states: dict[str, list[Thread]] = {}
    for thread in threads:
        state = "has returned" if thread.has_ended else f"waits at {thread.waiting}"
        states.setdefault(state, []).append(thread)
    parts = []
    for state, group in states.items():
        others = f" (and {len(group) - 1} more)" if len(group) > 1 else ""
        parts.append(f"thread {tuple(group[0].index)}{others} {state}")
    return "; ".join(parts)


def _exchange(group: list[Thread], values: dict[int, object]) -> None:
    """End the wait of a group of threads, and give each the values that all have passed."""
    for thread in group:
        thread.waiting = None
        thread.reply = values


def _name_thread(error: Exception, thread: Thread) -> None:
    """Put the kernel, the block and the thread into an exception's message."""
    where = (
        f"kernel {thread.block.machine.name}, block {tuple(thread.block.index)}, "
        f"thread {tuple(thread.index)}"
    )
    match error.args:
        case (str(message),):
            error.args = (f"{where}: {message}",)
        case _:
            error.add_note(where)
