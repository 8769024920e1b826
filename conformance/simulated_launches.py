"""Launches of kernels in the simulator: how a target runs them, and how many there are."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from fast import launch


@contextlib.contextmanager
def simulated_launches(seed: int) -> Iterator[None]:
    """Run kernels in the simulator inside, in the order of blocks and threads of a seed."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    threads = chance.choice((2, 8, 32))
    # A GPU that holds few threads, so that each has several things to do.
    at_once = chance.choice((threads, 4 * threads, launch.MANY_THREADS))
    with launch.simulated_by(_Simulation(seed), threads, at_once):
        yield


@contextlib.contextmanager
def counting_launches(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` for every kernel that is launched in the simulator inside."""
    _Simulation.counters.append(count)
    try:
        yield
    finally:
        _Simulation.counters.remove(count)


@dataclasses.dataclass
class _Simulation:
    """A launcher that runs each kernel in the simulator, with a new seed for each launch."""

    seed: int
    counters: ClassVar[list[Callable[[], None]]] = []

    def __call__(self, kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        from conformance.simulator import simulate  # noqa: PLC0415  # its greenlets are not needed on a GPU

        self.seed += 1
        for count in self.counters:
            count()
        simulate(kernel, grid, threads, args, seed=self.seed)
