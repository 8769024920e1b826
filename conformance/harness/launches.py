"""Runs kernel launches on the CPU as machine code, for the target `native`."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any, Final

import torch

from conformance.harness.fresh_memory import POISON_BYTE, filled_tensors
from fast import launch

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
    chance = random.Random(seed)  # noqa: S311  # no secret
    threads = chance.choice(sizes)
    # Like a GPU that runs few threads at once, so that each thread has several work items.
    at_once = chance.choice((threads, 4 * threads, launch.MANY_THREADS))
    before = launch.uses_kernels(ON_CPU)
    poison = chance.choice((POISON_BYTE, 0))
    seeds = itertools.count(seed + 1)  # a new one for each launch

    def run(*launched: Any) -> None:
        launch_natively(*launched, seed=next(seeds), arch=arch)

    with filled_tensors(poison), launch.simulated_by(run, threads, at_once):
        assert launch.uses_kernels(ON_CPU), "a tensor does not take the device path"
        yield
    assert before == launch.uses_kernels(ON_CPU), "the launcher outlives its block"
