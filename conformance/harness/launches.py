"""Runs kernel launches on the CPU as machine code, for the target `native`."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import torch

from conformance.harness.fresh_memory import POISON_BYTE, filled_tensors
from fast import launch

Simulate: TypeAlias = Callable[..., object]
"""Runs a kernel, as `native.launch_natively` does."""

ON_CPU: Final = torch.empty(0)
"""A tensor that takes the device path only while kernels run on the CPU."""

OWN_THREADS: Final = 1024
"""The maximum, so that a kernel runs with the number of threads that it declares."""


@contextlib.contextmanager
def native_launches(
    seed: int, threads: int | None = None, *, arch: str = "sm_90"
) -> Iterator[None]:
    """Run kernels as machine code inside; a seed sets the order of blocks and threads.

    Args:
        seed: The seed.
        threads: Threads in a block; None for a number chosen by the seed.
        arch: The GPU for which they are compiled.
    """
    from conformance.native import launch_natively  # noqa: PLC0415  # it needs numba-cuda

    sizes = (threads,) if threads else (2, 32, 64, 128, OWN_THREADS)
    with launching(functools.partial(launch_natively, arch=arch), seed, sizes):
        yield


@contextlib.contextmanager
def launching(simulate: Simulate, seed: int, sizes: tuple[int, ...]) -> Iterator[None]:
    """Run kernels on the CPU inside; the seed chooses the block size from `sizes`."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    threads = chance.choice(sizes)
    # Like a GPU that runs few threads at once, so that each thread has several work items.
    at_once = chance.choice((threads, 4 * threads, launch.MANY_THREADS))
    before = launch.uses_kernels(ON_CPU)
    poison = chance.choice((POISON_BYTE, 0))
    with (
        filled_tensors(poison),
        launch.simulated_by(_Launcher(simulate, seed), threads, at_once),
    ):
        assert launch.uses_kernels(ON_CPU), "a tensor does not take the device path"
        yield
    assert before == launch.uses_kernels(ON_CPU), "the simulator outlives its block"


class _Launcher:
    """A launcher that runs each kernel on the CPU, with a new seed for each launch."""

    def __init__(self, simulate: Simulate, seed: int) -> None:
        self._simulate = simulate
        self._seed = seed

    def __call__(self, kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:
        self._seed += 1
        self._simulate(kernel, grid, threads, args, seed=self._seed)
