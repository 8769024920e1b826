"""Compile kernels with numba-cuda, and launch them with its dispatcher.

Only this module depends on numba-cuda, and imports it when a kernel is first compiled. So
`import fast` is quick and works without it. To use a successor with the same kernel language, such
as numba-cuda-mlir, replace this module by one with these functions:

- `is_installed`, and `compile_ptx`, which compiles a kernel.
- `check_entry` and `make_flatten`, the words that a compiled kernel takes: for
  `fast.direct_launch`.
- `load` and `launch`, with numba's dispatcher: 40 times as slow on the host, but without private
  names.
"""

import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeAlias

import torch

from fast.current_stream import current_stream
from fast.kernels.cuda import Array, DeviceFunction, Instruction, Kernel
from fast.kernels.cuda import cuda as placeholder

Argument: TypeAlias = torch.Tensor | int
Flatten: TypeAlias = Callable[..., tuple[int, ...]]

PIP_INSTALL: Final = "pip install -e '.[cuda]' in a checkout of kvtwin"
INSTALL: Final = f"kernels need numba-cuda: {PIP_INSTALL}"
TOOLKIT: Final = "kernels need a CUDA toolkit's compiler: set CUDA_HOME to the toolkit's folder"


def is_installed() -> bool:
    """Return whether numba-cuda can be imported."""
    return importlib.util.find_spec("numba_cuda") is not None


@cache
def import_cuda() -> Any:
    """Import numba-cuda's `cuda`, not numba's own deprecated one; or raise ImportError."""
    # Puts numba-cuda in the place of numba's own `cuda`. A .pth file of numba-cuda does it when
    # Python starts, but not from a folder of PYTHONPATH, where Python reads no .pth files.
    with suppress(ModuleNotFoundError):
        importlib.import_module("_numba_cuda_redirector")
    try:
        import numba_cuda  # noqa: PLC0415  (numba takes 0.3 s to import)
        from numba import cuda as real  # noqa: PLC0415  (likewise)
    except ImportError as error:
        raise ImportError(f"{INSTALL} ({error})") from error
    folder = Path(numba_cuda.__file__).resolve().parent
    if folder not in Path(real.__file__).resolve().parents:
        raise ImportError(
            f"numba.cuda is {real.__file__}, expected that of numba-cuda in {folder}: import"
            " _numba_cuda_redirector before numba.cuda"
        )
    return real


@contextmanager
def compiling() -> Iterator[None]:
    """Explain what to set if numba-cuda finds no compiler (NVVM, libdevice).

    It searches the installed packages and `CUDA_HOME`. It does not guess that folder if another
    library of the toolkit is installed as a package, as with torch's wheels.
    """
    try:
        yield
    except RuntimeError as error:
        # By name: cuda.pathfinder is installed only with numba-cuda.
        if all(kind.__name__ != "DynamicLibNotFoundError" for kind in type(error).__mro__):
            raise
        raise ImportError(f"{TOOLKIT} ({error})") from error


def compile_ptx(
    kernel: Kernel, compute_capability: tuple[int, int], *, lineinfo: bool = False
) -> tuple[str, str]:
    """Compile a kernel without a GPU; return the PTX, and the name of the entry in it.

    With `lineinfo` the PTX has the source lines of its instructions.
    """
    cuda = import_cuda()
    with compiling():
        ptx, _ = cuda.compile_ptx(
            bind(kernel.py_func), kernel.signature, cc=compute_capability, lineinfo=lineinfo
        )
    entry = next(line for line in ptx.splitlines() if ".entry" in line)
    return ptx, entry.split()[-1].rstrip("(")


def bind(function: Any) -> Any:
    """Copy a function, with numba's `cuda` and compiled device functions among its globals."""
    real = import_cuda()
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = names.get(name)
        if value is placeholder:
            names[name] = real
        elif isinstance(value, Instruction):
            # Numba-cuda's `intrinsic` makes functions from its compiler's IR.
            intrinsic = importlib.import_module("numba.cuda.extending").intrinsic
            names[name] = intrinsic(INSTRUCTIONS[value.name](value.size))
        elif isinstance(value, DeviceFunction):
            names[name] = real.jit(device=True)(bind(value.py_func))
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )


def _copy_instruction(size: int) -> Any:
    """Return the instruction that copies `size` bytes from one array to another."""
    from numba import types  # noqa: PLC0415  (numba takes 0.3 s to import)

    def typed(_context: object, target: Any, at: Any, source: Any, start: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            here = _address(context, builder, signature.args[0], args[0], args[1], size)
            there = _address(context, builder, signature.args[2], args[2], args[3], size)
            builder.store(builder.load(there, align=size), here, align=size)
            return context.get_dummy_value()

        return types.void(target, at, source, start), lower

    return typed


def _fill_instruction(size: int) -> Any:
    """Return the instruction that stores the first `size` bytes of a repeating pattern of 8."""
    from llvmlite import ir  # noqa: PLC0415  # it comes with numba
    from numba import types  # noqa: PLC0415  (numba takes 0.3 s to import)

    def typed(_context: object, target: Any, at: Any, pattern: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            here = _address(context, builder, signature.args[0], args[0], args[1], size)
            value = args[2]
            if size < 8:
                value = builder.trunc(value, ir.IntType(8 * size))
            elif size > 8:
                value = ir.Constant(_word(size), ir.Undefined)
                for place in range(2):
                    index = ir.Constant(ir.IntType(32), place)
                    value = builder.insert_element(value, args[2], index)
            builder.store(value, here, align=size)
            return context.get_dummy_value()

        return types.void(target, at, pattern), lower

    return typed


def _word(size: int) -> Any:
    from llvmlite import ir  # noqa: PLC0415  # it comes with numba

    return ir.VectorType(ir.IntType(64), 2) if size > 8 else ir.IntType(8 * size)


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any, size: int) -> Any:
    """Return the address of an array's byte, as that of a word of `size` bytes."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _word(size).as_pointer())


INSTRUCTIONS: Final = {"copy": _copy_instruction, "fill": _fill_instruction}
"""The functions that write an instruction in the compiler's IR, by its name."""


def check_entry(kernel: Kernel, ptx: str, entry: str) -> None:
    """Raise ImportError if a compiled kernel takes other words of 8 bytes than `flatten` makes."""
    # From compute capability 10.0 on NVVM also marks pointers: `.param .u64 .ptr .align 1 name`.
    taken = re.findall(rf"\.param (\.\w+)\b.* {re.escape(entry)}_param_\d+", ptx)
    num_words = sum(5 + 2 * array.num_dims if array else 1 for array in kernel.parameters)
    if taken != [".u64"] * num_words:
        raise ImportError(
            f"numba-cuda compiles {kernel.name} to {len(taken)} words ({', '.join({*taken})}),"
            f" expected {num_words} (.u64): {PIP_INSTALL}, or set FAST_LAUNCHER=numba"
        )


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


def load(kernel: Kernel, index: int) -> None:
    """Compile a kernel for its signature, and load it onto a GPU."""
    with import_cuda().gpus[index]:
        _dispatcher(kernel, index)


def launch(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, args: tuple[Argument, ...]
) -> None:
    """Launch a kernel on torch's current stream of the current GPU, whose index is given."""
    cuda = import_cuda()
    given = (
        cuda.as_cuda_array(arg.detach(), sync=False) if isinstance(arg, torch.Tensor) else int(arg)
        for arg in args
    )
    with cuda.gpus[index]:  # a new thread is in no context
        _configured(kernel, index, grid, threads, current_stream(index))(*given)


@cache
def _dispatcher(kernel: Kernel, _index: int) -> Any:
    cuda = import_cuda()
    with compiling():
        return cuda.jit(kernel.signature)(bind(kernel.py_func))


@lru_cache(maxsize=1024)
def _configured(
    kernel: Kernel, index: int, grid: tuple[int, int], threads: int, handle: int
) -> Any:
    stream = import_cuda().external_stream(handle) if handle else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba warns of every small grid
        return _dispatcher(kernel, index)[grid, threads, stream]
