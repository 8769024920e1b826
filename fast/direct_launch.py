"""Launch kernels without numba's dispatcher, which takes 40 times as much time on the host.

For four tensors and an int, from `launch_blocks` on, a launch takes 5 µs instead of 190 µs (10 µs
with a generic `flatten`), on a CPU, with a driver that does nothing: `kvtwin.bench.launches`.

It uses one private part of numba-cuda: the words that a compiled kernel takes for an array. They
are pinned in `fast.numba_cuda`, and compared with the parameters of each compiled kernel. Other
versions than those in `TESTED` are an error.
"""

import importlib
import importlib.metadata
import re
import threading
from functools import cache, lru_cache
from typing import Any, Final

from fast import numba_cuda
from fast.current_stream import current_stream
from fast.kernels.cuda import Kernel
from fast.numba_cuda import Argument, Flatten

TESTED: Final = {
    "numba-cuda": ("0.30", "0.31"),
    "cuda-core": ("0.5.1", "2.0"),
    "numpy": ("2.0", "2.5"),
}
"""For each package, the first version that is trusted, and the first that is not. With a driver
that does nothing, this launcher ran with numba-cuda 0.30.4, and with cuda-core 0.5.1, 0.6.0, 0.7.0,
1.0.0 and 1.2.2. It uses only public names of cuda-core. numba-cuda 0.30 needs np.row_stack, which
NumPy 2.5 lacks."""


class _Thread(threading.local):
    """The GPUs whose context the running thread has entered."""

    def __init__(self) -> None:
        self.entered: set[int] = set()


_THREAD: Final = _Thread()


def check_installed() -> None:
    """Raise ImportError if this launcher was not tested with the installed packages."""
    numba_cuda.import_cuda()
    for package, (first, end) in TESTED.items():
        version = _version(package)
        if not _numbers(first) <= _numbers(version) < _numbers(end):
            raise ImportError(
                f"{package} is {version or 'not installed'}, but kernels are launched with"
                f" {first} to below {end}: {numba_cuda.PIP_INSTALL}, or set FAST_LAUNCHER=numba,"
                " which takes the host 40 times as long"
            )


def load(kernel: Kernel, index: int) -> tuple[Any, Flatten]:
    """Compile a kernel and load it onto a GPU, if it is not yet; return it with its `flatten`."""
    if index in kernel.loaded:
        found: tuple[Any, Flatten] = kernel.loaded[index]
        return found
    core = _core()
    device = core.Device(index)
    device.set_current()
    capability = device.compute_capability
    ptx, entry = numba_cuda.compile_ptx(kernel, (capability.major, capability.minor))
    numba_cuda.check_entry(kernel, ptx, entry)
    # Linked by the toolkit: a driver may be too old to assemble the compiler's PTX.
    options = core.LinkerOptions(arch=f"sm_{capability.major}{capability.minor}")
    cubin = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options).link("cubin")
    loaded = cubin.get_kernel(entry), numba_cuda.make_flatten(kernel.parameters)
    kernel.loaded[index] = loaded
    return loaded


def launch(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on the current stream of the current GPU, whose index is given."""
    loaded, flatten = kernel.loaded.get(index) or load(kernel, index)
    if index not in _THREAD.entered:
        # A new thread is in no context; a launch enters none, nor do all torch operations.
        _core().Device(index).set_current()
        _THREAD.entered.add(index)
    stream, shape = _place(index, current_stream(index), grid, threads)
    _core().launch(stream, shape, loaded, *flatten(*args))


@cache
def _core() -> Any:
    """Return cuda.core; an import in each launch would take 0.3 µs."""
    return importlib.import_module("cuda.core")


@lru_cache(maxsize=1024)
def _stream(_index: int, handle: int) -> Any:
    """Return cuda.core's object for a stream of torch's; making one takes 14 µs."""
    return _core().Stream.from_handle(handle)


@lru_cache(maxsize=4096)
def _place(index: int, handle: int, grid: tuple[int, int], threads: int) -> tuple[Any, Any]:
    """Return the stream and the shape of a launch; making the shape takes 3 µs."""
    return _stream(index, handle), _core().LaunchConfig(grid=grid, block=threads)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
