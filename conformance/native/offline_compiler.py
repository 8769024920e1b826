"""Compiles kernels to PTX without a GPU: all that this package needs of numba-cuda."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Protocol

from fast import numba_cuda
from fast.kernels.cuda import Kernel
from fast.numba_cuda import Argument


class CompileError(Exception):
    """A kernel does not compile."""


class Toolchain(Protocol):
    """Another compiler than numba-cuda, whose kernels may take arguments as other words."""

    def compile(self, kernel: Kernel, arch: str) -> str:
        """Compile a kernel, and return its PTX."""

    def flatten(self, args: Sequence[Argument]) -> Sequence[int]:
        """Return the words that its kernels take for arguments."""


def compile_offline(kernel: Kernel, arch: str, *, lineinfo: bool = False) -> tuple[str, str]:
    """Compile a kernel to PTX; return it, and the name of the entry in it.

    Args:
        kernel: Of `fast`.
        arch: Such as `sm_90`.
        lineinfo: Whether the PTX names the lines of the source.

    Raises:
        Exception: Whatever numba raises if it cannot be compiled.
    """
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    with pretended_gpu((major, minor)):
        return numba_cuda.compile_ptx(kernel, (major, minor), lineinfo=lineinfo)


@contextlib.contextmanager
def pretended_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda think that this machine has a GPU, for as long as it compiles.

    Numba queries the current device even if the architecture is given. The function that it calls
    is private, and imported by name into several modules (numba-cuda 0.30): it is replaced in each,
    and put back. This is the one place that touches numba's insides.

    Args:
        capability: The pretended GPU's compute capability.
    """
    numba_cuda.import_cuda()
    name = "get_current_device"
    moved_layers = [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("numba.cuda") and name in vars(module)
    ]
    originals = [getattr(module, name) for module in moved_layers]
    gpu = SimpleNamespace(compute_capability=capability)
    try:
        for module in moved_layers:
            setattr(module, name, lambda: gpu)
        yield
    finally:
        for module, original in zip(moved_layers, originals, strict=True):
            setattr(module, name, original)
