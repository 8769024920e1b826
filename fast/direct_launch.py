"""Launch kernels without numba's dispatcher, which takes 40 times as much time on the host.

For four tensors and an int, from `launch_blocks` on, a launch takes 5 µs instead of 190 µs (10 µs
with a generic `flatten`), on a CPU, with a driver that does nothing: `kvtwin.bench.launches`.

It uses one private part of numba: the words that a compiled kernel takes for an array. They are
pinned here and compared with numba's own description and with the parameters of each compiled
kernel. If they differ, or a version is not among those tested, this launcher raises `UnfitError`,
and `fast.launchers` falls back to numba.
"""

import importlib
import importlib.metadata
import re
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias

import torch

from fast.current_stream import current_stream
from fast.kernels.cuda import Array, Kernel, array_members, import_cuda

Argument: TypeAlias = torch.Tensor | int
Flatten: TypeAlias = Callable[..., tuple[int, ...]]

TESTED: Final = {"numba-cuda": ("0.30", "0.31"), "cuda-core": ("0.5.1", "2.0")}
"""Of each package, the first version that is trusted, and the first that is not. With a driver that
does nothing it ran with numba-cuda 0.30.4, whose arrays are private, and with cuda-core 0.5.1,
0.6.0, 0.7.0, 1.0.0 and 1.2.2, whose names are public."""

NAMES: Final = (
    "Device",
    "LaunchConfig",
    "Linker",
    "LinkerOptions",
    "ObjectCode",
    "Stream",
    "launch",
)
"""The names that are used from cuda.core."""

ARRAY_MEMBERS: Final = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")
"""The words that `flatten` makes: one of each, and for each dimension one of the last two."""


WORD: Final = re.compile(r"(\.u64)(?: \.ptr(?: \.align \d+)?)? (\S+)")
"""A parameter of 8 bytes in PTX. From compute capability 10.0 on NVVM also marks pointers, and the
alignment of what they point to: `.u64 .ptr .align 1 name`."""


class UnfitError(Exception):
    """This launcher cannot be used with the installed versions, or with a kernel's parameters."""


class _Thread(threading.local):
    """The GPUs whose context the running thread has entered."""

    def __init__(self) -> None:
        self.entered: set[int] = set()


_THREAD: Final = _Thread()


def check_installed() -> None:
    """Raise UnfitError if what is installed differs from what this launcher was tested with."""
    import_cuda()
    for package, (first, end) in TESTED.items():
        version = _version(package)
        if not _numbers(first) <= _numbers(version) < _numbers(end):
            found = version or "not installed"
            raise UnfitError(f"{package} is {found}, tested is {first} to below {end}")
    missing = [name for name in NAMES if not hasattr(_core(), name)]
    if missing:
        raise UnfitError(f"cuda.core has no {', '.join(missing)}")
    try:
        members = array_members(Array(num_dims=2, item_bytes=4))
    except (ImportError, AttributeError) as error:
        raise UnfitError(f"numba-cuda does not say what an array is: {error}") from error
    if members != ARRAY_MEMBERS:
        raise UnfitError(f"an array is {', '.join(members)}; tested is {', '.join(ARRAY_MEMBERS)}")


def load(kernel: Kernel, index: int) -> tuple[Any, Flatten]:
    """Compile a kernel and load it onto a GPU, if it is not yet; return it with its `flatten`."""
    if index in kernel.loaded:
        found: tuple[Any, Flatten] = kernel.loaded[index]
        return found
    import_cuda()  # a clear error, before cuda.core's
    core = _core()
    device = core.Device(index)
    device.set_current()
    capability = device.compute_capability
    ptx, entry = kernel.compile_ptx((capability.major, capability.minor))
    check_entry(kernel, ptx, entry)
    # Linked by the toolkit: a driver may be too old to assemble the compiler's PTX.
    options = core.LinkerOptions(arch=f"sm_{capability.major}{capability.minor}")
    cubin = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options).link("cubin")
    loaded = cubin.get_kernel(entry), make_flatten(kernel.parameters)
    kernel.loaded[index] = loaded
    return loaded


def check_entry(kernel: Kernel, ptx: str, entry: str) -> None:
    """Raise UnfitError if a compiled kernel takes other words of 8 bytes than `flatten` makes."""
    declared = re.search(rf"\.entry {re.escape(entry)}\((.*?)\)", ptx, re.DOTALL)
    found = [] if declared is None else re.findall(r"\.param\s+(.*?),?\n", declared[1])
    taken = [" ".join(word.groups()) if (word := WORD.fullmatch(one)) else one for one in found]
    num_words = sum(5 + 2 * array.num_dims if array else 1 for array in kernel.parameters)
    if taken != [f".u64 {entry}_param_{number}" for number in range(num_words)]:
        kinds = ", ".join(sorted({words.rpartition(" ")[0] for words in taken}))
        raise UnfitError(
            f"{kernel.name} takes {len(taken)} words ({kinds}), expected {num_words} (.u64)"
        )


def launch(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on the current stream of the current GPU, whose index is given."""
    loaded, flatten = kernel.loaded.get(index) or load(kernel, index)
    if index not in _THREAD.entered:
        _enter_context(index)
    stream, shape = _place(index, current_stream(index), grid, threads)
    _core().launch(stream, shape, loaded, *flatten(*args))


@cache
def make_flatten(parameters: tuple[Array | None, ...]) -> Flatten:
    """Make a function that returns the machine words that a kernel takes for its arguments.

    For an array numba takes two pointers that kernels do not use, the number of items, the bytes of
    one, the address, the shape, and the strides in bytes. The arrays are contiguous, so the strides
    follow from the shape. The function is one expression written for the kernel: a loop takes 0.8
    µs longer, and 5 µs if it reads all that from each tensor.

    Example:
        >>> flatten = make_flatten((Array(num_dims=1, item_bytes=4), None))
        >>> flatten(torch.zeros(3, dtype=torch.int32), 7)  # doctest: +ELLIPSIS
        (0, 0, 3, 4, ..., 3, 4, 7)
    """
    names = [f"argument_{number}" for number in range(len(parameters))]
    words = []
    for name, array in zip(names, parameters, strict=True):
        if array is None:
            words.append(f"int({name})")  # a NumPy int would be passed in its own width
            continue
        size = array.item_bytes
        if array.num_dims == 1:
            words.append(f"0, 0, (n := {name}.numel()), {size}, {name}.data_ptr(), n, {size}")
        else:
            words.append(f"0, 0, {name}.numel(), {size}, {name}.data_ptr(), *(s := {name}.shape)")
            words.append(f"{size} * s[1], {size}")
    text = f"lambda {', '.join(names)}: ({', '.join(words)},)"
    made: Flatten = eval(text)  # noqa: S307  (of numbers only)
    return made


def _enter_context(index: int) -> None:
    """Enter a GPU's context in a new thread; neither a launch nor all of torch does it."""
    _core().Device(index).set_current()
    _THREAD.entered.add(index)


@cache
def _core() -> Any:  # noqa: ANN401  (cuda.core is untyped)
    """Return cuda.core; an import in each launch would take 0.3 µs."""
    return importlib.import_module("cuda.core")


@lru_cache(maxsize=1024)
def _stream(_index: int, handle: int) -> Any:  # noqa: ANN401  (cuda.core is untyped)
    """Return cuda.core's object for a stream of torch's; making one takes 14 µs."""
    return _core().Stream.from_handle(handle)


@lru_cache(maxsize=4096)
def _place(index: int, handle: int, grid: tuple[int, int], threads: int) -> tuple[Any, Any]:
    """Return the stream and the shape of a launch; making the shape takes 3 µs."""
    return _stream(index, handle), _core().LaunchConfig(grid=grid, block=threads)


def _numbers(version: str) -> list[int]:
    """Return the numbers in a version."""
    return [int(number) for number in re.findall(r"\d+", version)]


def _version(package: str) -> str:
    """Return a package's version; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
