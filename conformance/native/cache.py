"""Keeps the PTX and the machine code of the kernels of `fast` on disk, beside this module.

Without it each process compiles them again, which takes 8 s of a core. One file for each kernel and
architecture is replaced when anything has changed that the machine code depends on: the kernel, all
functions and constants that it uses, this package, the packages that compile, or the CPU.
"""

import contextlib
import fcntl
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import llvmlite.binding as llvm

from fast import numba_cuda
from fast.kernels import cuda
from fast.kernels.cuda import DeviceFunction, Instruction, Kernel

FOLDER: Final = Path(__file__).with_name("__pycache__")

_PACKAGES: Final = ("numba", "numba-cuda", "llvmlite", "numpy", "nvidia-nvvm", "cuda-toolkit")


class Compiled(NamedTuple):
    """The cached files of a compiled kernel."""

    ptx: str  # the PTX that numba-cuda and NVVM generate
    machine_code: bytes  # the object file that LLVM generates from it for this CPU


def load_or_compile(kernel: Kernel, arch: str, compile_now: Callable[[], Compiled]) -> Compiled:
    """Return a compiled kernel from the cache on disk, or compile and cache it.

    Processes wait for each other, so that each kernel is compiled once. Only kernels that `fast`
    declares are cached, not those of tests or those with a planted bug. If Python writes no
    bytecode (`PYTHONDONTWRITEBYTECODE`), the cache is read but not written.
    """
    path = FOLDER / f"{kernel.name}.{arch}.{sys.implementation.cache_tag}.native"
    source = kernel.py_func.__code__.co_filename
    if kernel not in cuda.KERNELS or not Path(source).is_file():
        return compile_now()
    key = fingerprint(kernel, arch)
    if found := _read(path, key):
        return found
    if sys.dont_write_bytecode:
        return compile_now()
    try:
        FOLDER.mkdir(exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if found := _read(path, key):
                return found
            made = compile_now()
            new = path.with_suffix(".new")
            new.write_bytes(b"\0".join([key.encode(), made.ptx.encode(), made.machine_code]))
            new.replace(path)
            return made
    except OSError:  # the cache cannot be written
        return compile_now()


def _read(path: Path, key: str) -> Compiled | None:
    """Return the compiled kernel in a file; None if there is none with this key."""
    with contextlib.suppress(OSError, ValueError):
        found, ptx, machine_code = path.read_bytes().split(b"\0", 2)
        if found == key.encode():
            return Compiled(ptx.decode(), machine_code)
    return None


def fingerprint(kernel: Kernel, arch: str) -> str:
    """Return a digest of all that a kernel's machine code depends on."""
    uses = repr(describe_function(kernel.py_func, frozenset()))
    parts = (kernel.signature, arch, uses, *_environment_fingerprint())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def describe_function(function: Any, outer: frozenset[object]) -> object:
    """Return a function's code, and the globals and closure variables that it uses."""
    if function in outer:
        return function.__name__
    outer |= {function}
    used = {
        name: _describe(function.__globals__[name], outer)
        for name in sorted(_names(function.__code__))
        if name in function.__globals__
    }
    cells = [_describe(cell.cell_contents, outer) for cell in function.__closure__ or ()]
    return _code(function.__code__), function.__defaults__, cells, used


def _describe(value: Any, outer: frozenset[object]) -> object:
    """Describe a value as far as the machine code depends on it."""
    if value is cuda.cuda:
        return "cuda"
    if isinstance(value, Instruction):
        return value.size, describe_function(numba_cuda.INSTRUCTIONS[value.name], outer)
    if isinstance(value, DeviceFunction):
        value = value.py_func
    if isinstance(value, FunctionType):
        return describe_function(value, outer)
    if hasattr(value, "__wrapped__"):  # by `functools.cache`
        return _describe(value.__wrapped__, outer)
    if isinstance(value, dict):
        return {key: _describe(item, outer) for key, item in value.items()}
    return value.__name__ if isinstance(value, ModuleType) else repr(value)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*map(_names, _inner(code)))


def _code(code: CodeType) -> object:
    """Describe a code object, including its source lines, which faults report."""
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    place = (code.co_filename, code.co_firstlineno, code.co_linetable)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return code.co_code, constants, names, place, [_code(inner) for inner in _inner(code)]


def _inner(code: CodeType) -> Iterator[CodeType]:
    yield from (one for one in code.co_consts if isinstance(one, CodeType))


@cache
def _environment_fingerprint() -> tuple[str, ...]:
    """Describe the other inputs of machine code: this package, the compilers, and the CPU."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(numba_cuda.__file__)]
    found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    for name in _PACKAGES:
        try:
            found.append(version(name))
        except PackageNotFoundError:
            found.append("")
    return (*found, sys.version, llvm.get_host_cpu_name(), llvm.get_process_triple())
