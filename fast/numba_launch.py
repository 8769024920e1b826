"""Launching by numba's own dispatcher: the ordinary way, forty times as dear, with nothing private.

It takes over where `fast.direct_launch` does not know what is installed.
"""

import warnings
from functools import cache, lru_cache
from typing import Any

import torch

from fast.current import current_stream
from fast.direct_launch import Argument
from fast.kernels.cuda import Kernel, compiling, import_cuda


def load(kernel: Kernel, index: int) -> None:
    """Compile a kernel for its signature, and load it onto a GPU.

    Raises:
        ImportError: numba-cuda is not installed, or finds no compiler.
    """
    with import_cuda().gpus[index]:
        _dispatcher(kernel, index)


def launch(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on torch's current stream of a GPU, which is the current one.

    Raises:
        ImportError: numba-cuda is not installed, or finds no compiler.
    """
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
    """Return the kernel, compiled for its signature and no other, and loaded onto this GPU."""
    cuda = import_cuda()
    with compiling():
        return cuda.jit(kernel.signature)(kernel.for_numba())


@lru_cache(maxsize=1024)
def _configured(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, handle: int
) -> Any:  # noqa: ANN401  (numba is untyped)
    """Return what launches the kernel in this shape on a stream of torch's."""
    stream = import_cuda().external_stream(handle) if handle else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba warns of every small grid
        return _dispatcher(kernel, index)[grid, threads, stream]
