"""Compiles kernels to PTX with numba-cuda, without a GPU."""

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace

from fast import numba_cuda
from fast.kernels.cuda import Kernel


class CompileError(Exception):
    """A kernel does not compile."""


def compile_offline(kernel: Kernel, arch: str, *, lineinfo: bool = False) -> tuple[str, str]:
    """Compile a kernel to PTX; return the PTX, and the name of its entry.

    Args:
        kernel: A kernel of `fast`.
        arch: The architecture of a GPU, such as `sm_90`.
        lineinfo: Whether the PTX has the source lines of its instructions.

    Raises:
        Exception: Whatever numba raises if the kernel cannot be compiled.
    """
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    with pretended_gpu((major, minor)):
        return numba_cuda.compile_ptx(kernel, (major, minor), lineinfo=lineinfo)


@contextlib.contextmanager
def pretended_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile as if this machine had a GPU, until the end of the block.

    Numba queries the current device even if the architecture is given. The function that it calls
    is private, and imported by name into several modules (numba-cuda 0.30): it is patched in each
    and then restored. This is the only place that touches numba's internals.

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
