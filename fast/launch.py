"""The seam between `fast` and its kernels: every launch passes here.

On CUDA tensors a kernel is launched on torch's current stream. With `simulated_by` a simulator
takes the GPU's place, and CPU tensors take the device path.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy.typing as npt
import torch

from fast.kernels.cuda import Kernel

Argument: TypeAlias = torch.Tensor | int
Launcher: TypeAlias = Callable[[Kernel, tuple[int, int], int, tuple[Argument, ...]], None]

MANY_THREADS: Final = 2**18
"""As many threads as a large GPU holds at once."""


class _Simulator(NamedTuple):
    """What takes a GPU's place."""

    launch: Launcher
    threads: int
    threads_at_once: int


_SIMULATORS: Final[list[_Simulator]] = []


class _Thread(threading.local):
    """The GPUs whose context the running thread has entered."""

    def __init__(self) -> None:
        self.entered: set[int] = set()


_THREAD: Final = _Thread()


@contextmanager
def simulated_by(
    launcher: Launcher, threads: int = 32, threads_at_once: int = MANY_THREADS
) -> Iterator[None]:
    """Put a simulator in the GPU's place, until the end of the block.

    Args:
        launcher: called as `launcher(kernel, grid, threads, args)` for every launch, with a
            `Kernel`, the number of blocks along x and y, the threads in a block, and the arguments:
            contiguous tensors and ints.
        threads: threads in a block, at most as many as the kernel asks for.
        threads_at_once: threads that it holds at once.
    """
    _SIMULATORS.append(_Simulator(launcher, threads, threads_at_once))
    try:
        yield
    finally:
        _SIMULATORS.pop()


def uses_kernels(tensor: torch.Tensor) -> bool:
    """Say whether work on this tensor takes the device path."""
    return tensor.is_cuda or bool(_SIMULATORS)


def threads_in_block(kernel: Kernel) -> int:
    """Return how many threads a block of a kernel has."""
    return min(_SIMULATORS[-1].threads, kernel.threads) if _SIMULATORS else kernel.threads


def threads_at_once() -> int:
    """Return how many threads there are at once; where there is more to do, each does more."""
    return _SIMULATORS[-1].threads_at_once if _SIMULATORS else MANY_THREADS


def launch_threads(kernel: Kernel, num_x: int, num_y: int, *args: Argument) -> None:
    """Launch at least one thread for each `(x, y)`, in blocks along x; nothing for no work.

    Raises:
        ValueError: an argument is a CPU tensor, and no simulator is there.
        ImportError: numba-cuda is not installed.
    """
    threads = threads_in_block(kernel)
    _launch(kernel, (-(-num_x // threads), num_y), threads, args)


def launch_blocks(kernel: Kernel, num_x: int, num_y: int, *args: Argument) -> None:
    """Launch one block for each `(x, y)`; nothing for no work.

    Raises:
        ValueError: an argument is a CPU tensor, and no simulator is there.
        ImportError: numba-cuda is not installed.
    """
    _launch(kernel, (num_x, num_y), threads_in_block(kernel), args)


def upload(array: npt.NDArray[Any], device: torch.device, *, pin_memory: bool) -> torch.Tensor:
    """Copy an array to a device without waiting for it.

    The pinned memory is torch's: its allocator gives it to nobody else before the copy has ended.

    Args:
        array: what travels; on the CPU the result is its memory.
        device: where to.
        pin_memory: whether to put it into pinned memory first.

    Returns:
        The tensor there, of the same shape and dtype.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if pin_memory:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _launch(
    kernel: Kernel, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    if grid[0] < 1 or grid[1] < 1:
        return
    if _SIMULATORS:
        _SIMULATORS[-1].launch(kernel, grid, threads, args)
        return
    device = _common_device(kernel, args)
    if device.index == torch.cuda.current_device():
        _launch_on_gpu(kernel, device.index, grid, threads, args)
        return
    with torch.cuda.device(device):
        _launch_on_gpu(kernel, device.index, grid, threads, args)


def _common_device(kernel: Kernel, args: tuple[Argument, ...]) -> torch.device:
    """Return the GPU on which all tensors are: numba would launch a CPU tensor's host pointer."""
    devices = {arg.device for arg in args if isinstance(arg, torch.Tensor)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise ValueError(
            f"{kernel.name} needs tensors on one CUDA device, got {sorted(map(str, devices))}"
        )
    return devices.pop()


def _launch_on_gpu(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch through cuda.core: numba's dispatcher takes ten times as long (lab: 88 µs and 10)."""
    loaded = kernel.loaded(index)
    from cuda.core import launch  # noqa: PLC0415  (there only with numba-cuda)

    if index not in _THREAD.entered:
        _enter_context(index)
    handle = torch.cuda.current_stream(index).cuda_stream
    launch(_stream(index, handle), _shape(grid, threads), loaded, *flatten(args))


def _enter_context(index: int) -> None:
    """Enter a GPU's context, in which a new thread is not: a launch does not, nor all of torch."""
    from cuda.core import Device  # noqa: PLC0415  (there only with numba-cuda)

    Device(index).set_current()
    _THREAD.entered.add(index)


def flatten(args: tuple[Argument, ...]) -> list[int]:
    """Return the machine words that a kernel takes for contiguous tensors and ints.

    For an array numba takes two pointers that kernels do not use, the number of items, the bytes of
    one, the address, the shape, and the strides in bytes.
    """
    words: list[int] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            size = arg.element_size()
            strides = [size * stride for stride in arg.stride()]
            words += [0, 0, arg.numel(), size, arg.data_ptr(), *arg.shape, *strides]
        else:
            words.append(int(arg))  # a NumPy int would be passed in its own width
    return words


@lru_cache(maxsize=1024)
def _stream(_index: int, handle: int) -> Any:  # noqa: ANN401  (cuda.core is untyped)
    """Return cuda.core's name for a stream of torch's; making one takes 14 µs."""
    from cuda.core import Stream  # noqa: PLC0415  (there only with numba-cuda)

    return Stream.from_handle(handle)


@lru_cache(maxsize=1024)
def _shape(grid: tuple[int, int], threads: int) -> Any:  # noqa: ANN401  (cuda.core is untyped)
    """Return the shape of a launch."""
    from cuda.core import LaunchConfig  # noqa: PLC0415  (there only with numba-cuda)

    return LaunchConfig(grid=grid, block=threads)
