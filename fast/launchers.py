"""Which launcher serves the GPUs: past numba's dispatcher where that is known to do, else by numba.

It is chosen at the first launch, once. The environment variable `FAST_LAUNCHER` names one, `direct`
or `numba`; and `launched_by` does, for a while.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from fast import direct_launch, numba_launch
from fast.direct_launch import Argument, UnfitError
from fast.kernels.cuda import Kernel

VARIABLE: Final = "FAST_LAUNCHER"
"""The environment variable."""


class SlowLaunchWarning(UserWarning):
    """Kernels are launched by numba, which takes the host forty times as long."""


class Launcher(Protocol):
    """What launches kernels on GPUs: a module."""

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


LAUNCHERS: Final[dict[str, Launcher]] = {"direct": direct_launch, "numba": numba_launch}

_CHOSEN: Final[list[Launcher]] = []
"""The one that serves, once it is chosen."""


def load(kernel: Kernel, index: int) -> None:
    """Compile a kernel for a GPU, as it must be before a CUDA graph captures it.

    Raises:
        ImportError: numba-cuda is not installed.
    """
    try:
        launcher = _CHOSEN[0] if _CHOSEN else _choose()
        launcher.load(kernel, index)
    except UnfitError as error:
        _fall_back(error).load(kernel, index)


def launch_on_gpu(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on torch's current stream of a GPU, which is the current one.

    Args:
        kernel: what is launched.
        index: of the GPU.
        grid: blocks along x and y.
        threads: in a block.
        args: contiguous tensors on that GPU, and ints, as the kernel's signature says.

    Raises:
        ValueError: `FAST_LAUNCHER` names no launcher.
        ImportError: numba-cuda is not installed.
    """
    try:
        launcher = _CHOSEN[0] if _CHOSEN else _choose()
        launcher.launch(kernel, index, grid, threads, args)
    except UnfitError as error:
        _fall_back(error).launch(kernel, index, grid, threads, args)


@contextmanager
def launched_by(name: str) -> Iterator[None]:
    """Let the launcher of this name serve, in all threads, until the end of the block.

    Args:
        name: `direct` or `numba`.
    """
    before = list(_CHOSEN)
    _CHOSEN[:] = [LAUNCHERS[name]]
    try:
        yield
    finally:
        _CHOSEN[:] = before


def _choose() -> Launcher:
    """Choose who serves: whom the environment names, else the first who can."""
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
    """Let numba launch from now on, and say so."""
    _CHOSEN[:] = [numba_launch]
    warnings.warn(
        f"kernels are launched by numba, which takes the host far longer: {why}",
        SlowLaunchWarning,
        stacklevel=2,
    )
    return numba_launch
