"""Launches of kernels on the CPU: how targets run them, and how many there are."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from fast import launch

Simulate: TypeAlias = Callable[..., None]
"""Runs a kernel, as `simulator.simulate` and `native.launch_natively` do."""

OWN_THREADS: Final = 1024
"""So many or fewer, as a kernel declares."""

_COUNTERS: Final[list[Callable[[], None]]] = []


@contextlib.contextmanager
def simulated_launches(seed: int) -> Iterator[None]:
    """Run kernels in the simulator inside, in the order of blocks and threads of a seed."""
    from conformance.simulator import simulate  # noqa: PLC0415  # its greenlets are not needed on a GPU

    with _launching(simulate, seed, (2, 8, 32)):
        yield


@contextlib.contextmanager
def native_launches(seed: int) -> Iterator[None]:
    """Run kernels as machine code inside, in the order of blocks and threads of a seed."""
    from conformance.native import launch_natively  # noqa: PLC0415  # it needs numba-cuda

    with _launching(launch_natively, seed, (2, 32, 64, 128, OWN_THREADS)):
        yield


@contextlib.contextmanager
def counting_launches(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` for every kernel that is launched on the CPU inside."""
    _COUNTERS.append(count)
    try:
        yield
    finally:
        _COUNTERS.remove(count)


@contextlib.contextmanager
def _launching(simulate: Simulate, seed: int, sizes: tuple[int, ...]) -> Iterator[None]:
    """Run kernels on the CPU inside, with blocks of one of some sizes."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    threads = chance.choice(sizes)
    # A GPU that holds few threads, so that each has several things to do.
    at_once = chance.choice((threads, 4 * threads, launch.MANY_THREADS))
    with launch.simulated_by(_Launcher(simulate, seed), threads, at_once):
        yield


class _Launcher:
    """A launcher that runs each kernel on the CPU, with a new seed for each launch."""

    def __init__(self, simulate: Simulate, seed: int) -> None:
        self._simulate = simulate
        self._seed = seed

    def __call__(self, kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        self._seed += 1
        for count in _COUNTERS:
            count()
        self._simulate(kernel, grid, threads, args, seed=self._seed)
