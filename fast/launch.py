"""Launch kernels: every launch of `fast` goes through this module.

On CUDA tensors a kernel is launched on torch's current stream. With `simulated_by` a simulator
replaces the GPU, and CPU tensors take the device path.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

import torch

from fast.current_stream import current_device
from fast.kernels.cuda import Kernel
from fast.launchers import launch_on_gpu
from fast.numba_cuda import Argument

Launcher: TypeAlias = Callable[[Kernel, tuple[int, int], int, tuple[Argument, ...]], None]

MANY_THREADS: Final = 2**18
"""The threads that run at once on a large GPU."""


class _Simulator(NamedTuple):
    """A simulator that replaces the GPU."""

    launch: Launcher
    threads: int
    threads_at_once: int


_SIMULATORS: Final[list[_Simulator]] = []


@contextmanager
def simulated_by(
    launcher: Launcher, threads: int = 32, threads_at_once: int = MANY_THREADS
) -> Iterator[None]:
    """Replace the GPU by a simulator, until the end of the block.

    Args:
        launcher: Called as `launcher(kernel, grid, threads, args)` for every launch, with a
            `Kernel`, the number of blocks along x and y, the threads in a block, and contiguous
            tensors and ints.
        threads: The most threads in a block; a kernel may declare fewer.
        threads_at_once: Threads that run at once.
    """
    _SIMULATORS.append(_Simulator(launcher, threads, threads_at_once))
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

    Without a simulator, CPU tensors are a ValueError.
    """
    threads = threads_in_block(kernel)
    _launch(kernel, (-(-num_x // threads), num_y), threads, args)


def launch_blocks(kernel: Kernel, num_x: int, num_y: int, *args: Argument) -> None:
    """Launch one block for each `(x, y)`; nothing if there is no work.

    Without a simulator, CPU tensors are a ValueError.
    """
    _launch(kernel, (num_x, num_y), threads_in_block(kernel), args)


def _launch(
    kernel: Kernel, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    if grid[0] < 1 or grid[1] < 1:
        return
    if _SIMULATORS:
        _SIMULATORS[-1].launch(kernel, grid, threads, args)
        return
    index = _common_device(kernel, args)
    if index == current_device():
        launch_on_gpu(kernel, index, grid, threads, args)
        return
    with torch.cuda.device(index):
        launch_on_gpu(kernel, index, grid, threads, args)


def _common_device(kernel: Kernel, args: tuple[Argument, ...]) -> int:
    """Return the GPU that all tensors are on; a CPU tensor's pointer must not be launched."""
    index = None
    for arg in args:  # a set takes 0.9 µs longer
        if isinstance(arg, torch.Tensor):
            there = arg.get_device()
            if there != index:
                if index is not None:
                    index = None
                    break
                index = there
    if index is None or index < 0:  # the CPU's is -1
        devices = sorted({str(arg.device) for arg in args if isinstance(arg, torch.Tensor)})
        raise ValueError(f"{kernel.name} needs tensors on one CUDA device, got {devices}")
    return index
