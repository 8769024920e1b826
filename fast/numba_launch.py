"""Launch kernels with numba's own dispatcher: 40 times as slow on the host, nothing private.

It is used where `fast.direct_launch` was not tested with what is installed.
"""

import warnings
from functools import cache, lru_cache
from typing import Any

import torch

from fast.current_stream import current_stream
from fast.direct_launch import Argument
from fast.kernels.cuda import Kernel, compiling, import_cuda


def load(kernel: Kernel, index: int) -> None:
    """Compile a kernel for its signature, and load it onto a GPU."""
    with import_cuda().gpus[index]:
        _dispatcher(kernel, index)


def launch(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on torch's current stream of the current GPU, whose index is given."""
    cuda = import_cuda()
    with cuda.gpus[index]:  # a new thread is in no context
        configured = _configured(kernel, index, grid, threads, current_stream(index))
        configured(
            *(
                cuda.as_cuda_array(arg.detach(), sync=False)
                if isinstance(arg, torch.Tensor)
                else int(arg)
                for arg in args
            )
        )


@cache
def _dispatcher(kernel: Kernel, _index: int) -> Any:  # noqa: ANN401  (numba is untyped)
    """Return the kernel, compiled for its signature and loaded onto this GPU."""
    cuda = import_cuda()
    with compiling():
        return cuda.jit(kernel.signature)(kernel.for_numba())


@lru_cache(maxsize=1024)
def _configured(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, handle: int
) -> Any:  # noqa: ANN401  (numba is untyped)
    """Return the launchable kernel with this shape, on a stream of torch's."""
    stream = import_cuda().external_stream(handle) if handle else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba warns of every small grid
        return _dispatcher(kernel, index)[grid, threads, stream]
