"""Runs and observes kernel launches on the CPU, for the targets `sim` and `native`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from conformance.harness.launches import OWN_THREADS, Simulate, launching

_OBSERVERS: list[Callable[[Any, int, Any], None]] = []


def _observed(simulate: Simulate) -> Simulate:
    def run(kernel: Any, grid: tuple[int, int], threads: int, args: Any, *, seed: int) -> None:
        for see in _OBSERVERS:
            see(kernel, threads, args)
        simulate(kernel, grid, threads, args, seed=seed)

    return run


@contextlib.contextmanager
def simulated_launches(seed: int, threads: int | None = None) -> Iterator[None]:
    """Run kernels in the simulator inside; a seed sets the order of blocks and threads."""
    from conformance.simulator import simulate  # noqa: PLC0415  # its greenlets are not needed on a GPU

    with launching(_observed(simulate), seed, (threads,) if threads else (2, 8, 32)):
        yield


@contextlib.contextmanager
def native_launches(
    seed: int, threads: int | None = None, *, arch: str = "sm_90"
) -> Iterator[None]:
    """Run kernels as machine code inside; see `simulated_launches`."""
    from conformance.native import launch_natively  # noqa: PLC0415  # it needs numba-cuda

    sizes = (threads,) if threads else (2, 32, 64, 128, OWN_THREADS)
    with launching(_observed(functools.partial(launch_natively, arch=arch)), seed, sizes):
        yield


@contextlib.contextmanager
def launches_seen(see: Callable[[Any, int, Any], None]) -> Iterator[None]:
    """Call `see` with the kernel, threads and arguments of every launch on the CPU inside."""
    _OBSERVERS.append(see)
    try:
        yield
    finally:
        _OBSERVERS.remove(see)


def counting_launches(count: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Call `count` for every kernel that is launched on the CPU inside."""
    return launches_seen(lambda *_: count())
