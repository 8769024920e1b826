"""Launches a kernel as machine code of this CPU, with every access checked."""

import contextlib
import gc
import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from conformance.native.cache import Compiled, load_or_compile
from conformance.native.compiled import CompiledPtx, CompileError, compile_offline, translate
from conformance.native.describing import describe
from conformance.native.memory import CELLS_OF_BYTE
from conformance.native.ptx import UnknownPtxError
from conformance.native.state import NUM_ORDERS, Field
from fast import numba_cuda
from fast.kernels.cuda import Kernel

MOST_INSTRUCTIONS: Final = 400_000_000
"""The most instructions that a thread may execute; more are reported as an endless loop."""

_ORDERS_OF_THREADS: Final = 64
"""How many different sets of thread orders the seeds select from."""

_MAX_THREADS: Final = 1024
_MAX_GRID: Final = (2**31 - 1, 65535)

_Compilations: TypeAlias = dict[str, CompiledPtx]
"""A kernel's machine code by architecture."""

_LOCK: Final = threading.RLock()
_COMPILED: Final[WeakKeyDictionary[Kernel, _Compilations]] = WeakKeyDictionary()


class _Shadow:
    """The shadow memory that all launches share, and their last epoch."""

    def __init__(self) -> None:
        self.cells = np.zeros(0, np.uint64)
        self.epoch = 0

    def prepare(self, num_bytes: int) -> None:
        """Provide cells for this many bytes; cells of earlier launches have earlier epochs."""
        size = num_bytes * CELLS_OF_BYTE
        if size > len(self.cells) or self.epoch >= 2**31:
            self.cells = np.zeros(max(2 * size, len(self.cells)), np.uint64)
            self.epoch = 0


_SHADOW: Final = _Shadow()


def launch_natively(
    kernel: Kernel,
    grid: tuple[int, int],
    threads: int,
    args: Sequence[torch.Tensor | int],
    *,
    seed: int = 0,
    has_shadow: bool = True,
    arch: str = "sm_90",
    most_instructions: int = MOST_INSTRUCTIONS,
) -> int:
    """Run the compiled code of a kernel on the CPU, and check every access and barrier.

    The kernel's PTX is translated to this CPU's machine code, once for each architecture. The same
    seed gives the same run.

    Args:
        kernel: A kernel of `fast`.
        grid: The blocks along x and y.
        threads: The threads of a block.
        args: Tensors on the CPU and ints, one for each parameter. Tensors are written in place.
        seed: Decides the order of the blocks, and that of the threads after every barrier.
        has_shadow: Whether to detect races and reads of uninitialised memory. It takes 24 bytes
            for each byte of the arrays.
        arch: The GPU for which the kernel is compiled.
        most_instructions: The most instructions that a thread may execute.

    Returns:
        How many PTX instructions all threads executed, including those whose guard was false.

    Raises:
        CompileError: Numba or NVVM does not compile the kernel.
        NativeFault: An access is outside all arrays, misaligned, to memory that was never written,
            or in a race; or not all threads reach a barrier; or a thread does not end.
        TypeError: The arguments do not fit the kernel's signature, or the launcher of `fast` passes
            other words for them than the compiled kernel takes.
        UnknownPtxError: The PTX has a construct that is not translated.
        ValueError: CUDA does not allow the size of the grid or of the block.
    """
    if not 1 <= threads <= _MAX_THREADS:
        raise ValueError(f"threads is {threads}, but a block has 1 to {_MAX_THREADS}")
    if not all(1 <= size <= most for size, most in zip(grid, _MAX_GRID, strict=True)):
        raise ValueError(f"grid is {grid}, but must be at least 1 and at most {_MAX_GRID}")
    check_arguments(kernel, args)
    with _LOCK:
        compiled = compile_native(kernel, arch)
        words = numba_cuda.make_flatten(kernel.parameters)(*args)
        check_words(kernel, compiled.entry.num_words, words, args)
        launch = _Launch(compiled, grid, threads, words, args, seed)
        launch.state[Field.MOST_INSTRUCTIONS] = most_instructions
        if has_shadow:
            launch.add_shadow()
        launch.run()
    if launch.state[Field.KIND]:
        raise describe(kernel, compiled, launch.state, launch.blocks, launch.epochs, args)
    return int(launch.state[Field.EXECUTED])


def compile_native(kernel: Kernel, arch: str = "sm_90") -> CompiledPtx:
    """Return a kernel as machine code of this CPU, compiled once for each architecture."""
    found = _COMPILED.setdefault(kernel, {})
    if arch not in found:
        made = load_or_compile(kernel, arch, lambda: _compile(kernel, arch))
        found[arch] = CompiledPtx(*made, _num_arrays(kernel))
    return found[arch]


def _compile(kernel: Kernel, arch: str) -> Compiled:
    with _without_collections():
        try:
            ptx, _ = compile_offline(kernel, arch, lineinfo=True)
        except ImportError:
            raise
        except Exception as error:
            raise CompileError(f"kernel {kernel.name}: does not compile: {error}") from error
        try:
            return Compiled(ptx, translate(ptx, _num_arrays(kernel)))
        except UnknownPtxError as error:
            raise UnknownPtxError(f"kernel {kernel.name}: {error}") from error


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Disable garbage collection, which would take a fifth of the time to compile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _num_arrays(kernel: Kernel) -> int:
    return sum(map(bool, kernel.parameters))


def archs_of(kernel: Kernel) -> list[str]:
    return list(_COMPILED.get(kernel, ()))


class _Launch:
    """The state of a launch, and the memory that it points to."""

    def __init__(
        self,
        compiled: CompiledPtx,
        grid: tuple[int, int],
        threads: int,
        words: Sequence[int],
        args: Sequence[torch.Tensor | int],
        seed: int,
    ) -> None:
        self.compiled = compiled
        self.threads = threads
        self.arrays = [arg for arg in args if isinstance(arg, torch.Tensor)]
        self.blocks = _order(grid[0] * grid[1], seed)
        self.epochs = np.zeros(len(self.blocks), np.int64)
        self.orders = _orders(threads, seed % _ORDERS_OF_THREADS)
        self.frames = np.empty(threads * compiled.frame_words, np.int64)
        sizes = compiled.layout.sizes
        self.shared = _aligned(sizes["shared"])
        self.local = _aligned(sizes["local"] * threads)
        places = [word for one in self.arrays for word in (one.data_ptr(), one.nbytes, 0)]
        # Made from one list: storing the words one by one in an array takes five times as long.
        self.state = np.array([*[0] * Field.WORDS, *words, *places], np.int64)
        fields = {
            Field.NUM_THREADS: threads,
            Field.GRID_X: grid[0],
            Field.GRID_Y: grid[1],
            Field.NUM_BLOCKS: len(self.blocks),
            Field.BLOCKS: self.blocks.ctypes.data,
            Field.EPOCHS: self.epochs.ctypes.data,
            Field.ORDERS: self.orders.ctypes.data,
            Field.FRAMES: self.frames.ctypes.data,
            Field.SHARED: self.shared.ctypes.data,
            Field.LOCAL: self.local.ctypes.data,
        }
        for field, value in fields.items():
            self.state[field] = value

    def _words_of_arrays(self) -> range:
        first = Field.WORDS + self.compiled.layout.num_words
        return range(first, len(self.state), 3)

    def add_shadow(self) -> None:
        """Assign cells of shadow memory to each byte; overlapping arrays share them."""
        cell, end = 0, 0
        order = sorted(range(len(self.arrays)), key=lambda number: self.arrays[number].data_ptr())
        words = list(self._words_of_arrays())
        for number in order:
            begin, size = self.arrays[number].data_ptr(), self.arrays[number].nbytes
            first = cell - (end - begin) if begin < end else cell
            end = max(end, begin + size) if begin < end else begin + size
            cell = max(cell, first + size)
            self.state[words[number] + 2] = first
        sizes = self.compiled.layout.sizes
        self.state[Field.SHARED_CELLS] = cell
        self.state[Field.LOCAL_CELLS] = cell + sizes["shared"]
        _SHADOW.prepare(cell + sizes["shared"] + sizes["local"] * self.threads)
        self.state[Field.CELLS] = _SHADOW.cells.ctypes.data

    def run(self) -> None:
        """Run the launch to its end, or to the first fault."""
        self.state[Field.NOW] = _SHADOW.epoch
        self.state[Field.LAUNCHED] = _SHADOW.epoch + 1
        self.compiled.run(self.state.ctypes.data)
        _SHADOW.epoch = int(self.state[Field.NOW])


def _order(size: int, seed: int) -> Any:
    return np.random.default_rng(seed).permutation(size)


@lru_cache(maxsize=1024)
def _orders(threads: int, seed: int) -> Any:
    """Return the orders of threads in the epochs of a launch; making them takes 60 us."""
    return np.stack([_order(threads, NUM_ORDERS * seed + number) for number in range(NUM_ORDERS)])


def _aligned(size: int) -> Any:
    """Return memory that is aligned to 64 bytes, as the memory of a block is."""
    memory = np.empty(size + 64, np.uint8)
    skipped = -memory.ctypes.data % 64
    return memory[skipped : skipped + max(size, 1)]


# The arguments of a launch, and the words that the launcher of `fast` passes for them.
# Words have no types: a GPU would read an int64 tensor as garbage where the kernel expects int32.


_PARAMETER: Final = re.compile(r"(\w+)(?:\[([:, 1]+)\])?")


def check_arguments(kernel: Kernel, args: Sequence[torch.Tensor | int]) -> None:
    """Check arguments against the signature of a kernel."""
    kinds = _kinds(kernel.signature)
    names = kernel.py_func.__code__.co_varnames
    where = f"kernel {kernel.name}"
    if len(kinds) != len(args):
        raise TypeError(f"{where}: takes {len(kinds)} arguments, but got {len(args)}")
    for name, (kind, axes), arg in zip(names, kinds, args, strict=False):
        if not axes:
            is_fit = not isinstance(arg, torch.Tensor) and -(2**63) <= int(arg) < 2**63
        else:
            is_fit = isinstance(arg, torch.Tensor) and (
                arg.dtype == getattr(torch, kind)
                and arg.dim() == axes.count(":") - 1
                and arg.is_contiguous()
                and arg.device.type == "cpu"
            )
        if not is_fit:
            found = repr(arg)
            if isinstance(arg, torch.Tensor):
                found = f"{arg.dtype} of shape {tuple(arg.shape)}, strides {arg.stride()}"
            raise TypeError(
                f"{where}: argument {name} is {found}, but its type is"
                f" {kind}{f'[{axes}]' if axes else ''}"
            )


@cache
def _kinds(signature: str) -> list[tuple[str, str | None]]:
    """Return the type of each parameter of a signature, and the axes if it is an array."""
    parameters = signature.removeprefix("void(").removesuffix(")")
    return [(found[1], found[2]) for found in _PARAMETER.finditer(parameters)]


def check_words(
    kernel: Kernel, num_words: int, words: Sequence[int], args: Sequence[torch.Tensor | int]
) -> None:
    """Check the words of a launch against the words that numba's kernels take for each argument.

    For an array they are two pointers that kernels do not use, the number of items, the bytes of
    one, the address, the shape, and the strides in bytes.
    """
    where = f"kernel {kernel.name}"
    if len(words) != num_words:
        raise TypeError(f"{where}: takes {num_words} words, but got {len(words)}")
    names = kernel.py_func.__code__.co_varnames
    place = 0
    for name, arg in zip(names, args, strict=False):
        expected: list[int]
        if isinstance(arg, torch.Tensor):
            size = arg.element_size()
            strides = [stride * size for stride in arg.stride()]
            place += 2
            expected = [arg.numel(), size, arg.data_ptr(), *arg.shape, *strides]
        else:
            expected = [int(arg)]
        found = list(words[place : place + len(expected)])
        if found != expected:
            raise TypeError(
                f"{where}: the words launched for {name} are {found}, expected {expected}"
            )
        place += len(expected)
