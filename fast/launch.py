"""Launch kernels: every launch of `fast` goes through this module.

On CUDA tensors a kernel is launched on torch's current stream by `fast.direct_launch`, or by
numba's dispatcher if the environment variable `FAST_LAUNCHER` is `numba`. With `simulated_by`
something else runs kernels in place of a GPU, and CPU tensors take the device path.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Final, NamedTuple, TypeAlias

import torch

from fast import direct_launch, numba_cuda
from fast.current_stream import current_device
from fast.kernels.cuda import Kernel
from fast.numba_cuda import Argument

LAUNCHERS: Final = {"direct": direct_launch, "numba": numba_cuda}
"""The modules that `load` and `launch` kernels, by the values of `FAST_LAUNCHER`."""

MANY_THREADS: Final = 2**18
"""The threads that run at once on a large GPU."""

Launch: TypeAlias = Callable[[Kernel, tuple[int, int], int, tuple[Argument, ...]], object]


class _Simulator(NamedTuple):
    launch: Launch
    threads: int
    threads_at_once: int


_SIMULATORS: Final[list[_Simulator]] = []


@contextmanager
def simulated_by(
    launch: Launch, threads: int = 32, threads_at_once: int = MANY_THREADS
) -> Iterator[None]:
    """Run kernels without a GPU, until the end of the block.

    Args:
        launch: Called as `launch(kernel, grid, threads, args)` for every launch, with a `Kernel`,
            the number of blocks along x and y, the threads in a block, and contiguous tensors and
            ints.
        threads: The most threads in a block; a kernel may declare fewer.
        threads_at_once: Threads that run at once.
    """
    _SIMULATORS.append(_Simulator(launch, threads, threads_at_once))
    try:
        yield
    finally:
        _SIMULATORS.pop()


def uses_kernels(tensor: torch.Tensor) -> bool:
    """Return whether a tensor takes the device path."""
    return tensor.is_cuda or bool(_SIMULATORS)


def threads_in_block(kernel: Kernel) -> int:
    """Return how many threads a block of a kernel has."""
    return min(_SIMULATORS[-1].threads, kernel.threads) if _SIMULATORS else kernel.threads


def threads_at_once() -> int:
    """Return how many threads run at once; with more work than that, each thread does more."""
    return _SIMULATORS[-1].threads_at_once if _SIMULATORS else MANY_THREADS


def launch_threads(kernel: Kernel, num_x: int, num_y: int, *args: Argument) -> None:
    """Launch at least one thread for each `(x, y)`, in blocks along x; nothing if there is no work.

    CPU tensors are a ValueError, except inside `simulated_by`.
    """
    threads = threads_in_block(kernel)
    _launch(kernel, (-(-num_x // threads), num_y), threads, args)


def launch_blocks(kernel: Kernel, num_x: int, num_y: int, *args: Argument) -> None:
    """Launch one block for each `(x, y)`; nothing if there is no work.

    CPU tensors are a ValueError, except inside `simulated_by`.
    """
    _launch(kernel, (num_x, num_y), threads_in_block(kernel), args)


@cache
def launcher() -> ModuleType:
    """Return the module that launches kernels, as chosen at the first launch.

    Its `load` compiles a kernel for a GPU, which must happen before a CUDA graph captures it; its
    `launch` launches one on torch's current stream of the current GPU.
    """
    name = os.environ.get("FAST_LAUNCHER") or "direct"
    if name not in LAUNCHERS:
        raise ValueError(f"FAST_LAUNCHER is {name!r}, expected {' or '.join(LAUNCHERS)}")
    if name == "direct":
        direct_launch.check_installed()
    return LAUNCHERS[name]


def _launch(
    kernel: Kernel, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    if grid[0] < 1 or grid[1] < 1:
        return
    if _SIMULATORS:
        _SIMULATORS[-1].launch(kernel, grid, threads, args)
        return
    gpus = [arg.get_device() for arg in args if isinstance(arg, torch.Tensor)]
    # A CPU tensor's pointer must not be launched; its device is -1.
    if not gpus or gpus[0] < 0 or gpus.count(gpus[0]) < len(gpus):
        devices = sorted({str(arg.device) for arg in args if isinstance(arg, torch.Tensor)})
        raise ValueError(f"{kernel.name} needs tensors on one CUDA device, got {devices}")
    if gpus[0] == current_device():
        launcher().launch(kernel, gpus[0], grid, threads, args)
        return
    with torch.cuda.device(gpus[0]):
        launcher().launch(kernel, gpus[0], grid, threads, args)
