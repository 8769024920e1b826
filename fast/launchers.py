"""Choose the launcher: the direct one if it is tested with what is installed, else numba's.

The first launch chooses, once. The environment variable `FAST_LAUNCHER` (`direct` or `numba`)
overrides the choice, and so does `launched_by`, temporarily.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from fast import direct_launch, numba_cuda
from fast.kernels.cuda import Kernel
from fast.numba_cuda import Argument, UnfitError

VARIABLE: Final = "FAST_LAUNCHER"
"""The environment variable that selects a launcher."""


class SlowLaunchWarning(UserWarning):
    """Kernels are launched by numba's dispatcher, which takes 40 times as much time on the host."""


class Launcher(Protocol):
    """A module that launches kernels on GPUs."""

    def load(self, kernel: Kernel, index: int, /) -> object:
        """Compile a kernel for a GPU."""

    def launch(
        self,
        kernel: Kernel,
        index: int,
        grid: tuple[int, int],
        threads: int,
        args: tuple[Argument, ...],
        /,
    ) -> None:
        """Launch a kernel on torch's current stream of a GPU, which is the current one."""


LAUNCHERS: Final[dict[str, Launcher]] = {"direct": direct_launch, "numba": numba_cuda}

_CHOSEN: Final[list[Launcher]] = []
"""The chosen launcher, after the first launch."""


def load(kernel: Kernel, index: int) -> None:
    """Compile a kernel for a GPU, which must happen before a CUDA graph captures it."""
    try:
        launcher = _CHOSEN[0] if _CHOSEN else _choose()
        launcher.load(kernel, index)
    except UnfitError as error:
        _fall_back(error).load(kernel, index)


def launch_on_gpu(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on torch's current stream of the current GPU, whose index is given.

    Args:
        kernel: The kernel.
        index: The index of the GPU.
        grid: Blocks along x and y.
        threads: Threads in a block.
        args: Contiguous tensors on that GPU, and ints, as in the kernel's signature.
    """
    try:
        launcher = _CHOSEN[0] if _CHOSEN else _choose()
        launcher.launch(kernel, index, grid, threads, args)
    except UnfitError as error:
        _fall_back(error).launch(kernel, index, grid, threads, args)


@contextmanager
def launched_by(name: str) -> Iterator[None]:
    """Use the launcher `direct` or `numba`, in all threads, until the end of the block."""
    before = list(_CHOSEN)
    _CHOSEN[:] = [LAUNCHERS[name]]
    try:
        yield
    finally:
        _CHOSEN[:] = before


def _choose() -> Launcher:
    """Return the launcher that the environment selects, else the first that can be used."""
    name = os.environ.get(VARIABLE) or "direct"
    if name not in LAUNCHERS:
        raise ValueError(f"{VARIABLE} is {name!r}, expected {' or '.join(LAUNCHERS)}")
    if not os.environ.get(VARIABLE):
        try:
            direct_launch.check_installed()
        except UnfitError as error:
            return _fall_back(error)
    _CHOSEN[:] = [LAUNCHERS[name]]
    return _CHOSEN[0]


def _fall_back(why: UnfitError) -> Launcher:
    """Switch to numba's dispatcher from now on, and warn."""
    _CHOSEN[:] = [numba_cuda]
    warnings.warn(
        f"kernels are launched by numba, which takes the host far longer: {why}",
        SlowLaunchWarning,
        stacklevel=2,
    )
    return numba_cuda
