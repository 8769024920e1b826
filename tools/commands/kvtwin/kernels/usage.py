"""Compile and link kernels, and read their resource usage from the linker's log."""

import dataclasses
import functools
import importlib
import pkgutil
import re
from typing import Any, Final

import fast.kernels
from conformance.native.offline_compiler import compile_offline
from fast import numba_cuda
from fast.kernels.cuda import KERNELS, Kernel

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
"""The GPUs for which kernels are compiled: A100, H100 and H200, B200, B300, and RTX 50."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """The resource usage of a kernel on one architecture; None for an unknown figure.

    Attributes:
        kernel: Its name.
        arch: The architecture, such as `sm_90`.
        registers: Registers per thread.
        spill_stores_bytes: Register spills: bytes that each thread stores.
        spill_loads_bytes: Register spills: bytes that each thread loads.
        shared_bytes: Shared memory per block, as the linker counts it: on sm_90 with the KiB that
            the system reserves in a block that uses any, and without memory added at launch.
        stack_bytes: Stack per thread.
        ptx_instructions: Instructions in the PTX that numba generates.
        executed_per_element: PTX instructions that all threads execute on a standard batch, per
            element of the result: a measure of the work.
    """

    kernel: str
    arch: str
    registers: int | None
    spill_stores_bytes: int | None
    spill_loads_bytes: int | None
    shared_bytes: int | None
    stack_bytes: int | None
    ptx_instructions: int
    executed_per_element: float | None = None

    @property
    def has_spills(self) -> bool:
        """Whether the kernel spills registers."""
        return (self.spill_stores_bytes or 0) + (self.spill_loads_bytes or 0) > 0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A kernel that could not be compiled, or a standard batch that could not be run.

    Attributes:
        kernel: Its name.
        arch: The architecture, such as `sm_90`.
        error: The error message.
    """

    kernel: str
    arch: str
    error: str


def check_toolchain() -> None:
    """Check that the toolchain that compiles kernels is installed.

    Raises:
        ImportError: numba-cuda or NVVM is missing.
    """
    numba_cuda.import_cuda()
    _load("nvvm")


def why_no_linker() -> str:
    """Return why kernels cannot be linked (nvJitLink is missing); empty if they can."""
    try:
        _load("nvjitlink")
    except ImportError as error:
        return str(error)
    return ""


def _load(name: str) -> None:
    """Load a library of the toolkit, or raise ImportError."""
    try:
        importlib.import_module(f"cuda.bindings.{name}").version()
    except (ImportError, RuntimeError) as error:
        raise ImportError(f"kernels need {name}: {numba_cuda.PIP_INSTALL} ({error})") from error


def find_kernels() -> list[Kernel]:
    """Import all modules of `fast.kernels`, and return the kernels that they declare."""
    for module in pkgutil.walk_packages(fast.kernels.__path__, "fast.kernels."):
        importlib.import_module(module.name)
    return list(KERNELS)


def measure(kernel: Kernel, arch: str, *, has_linker: bool = True) -> Usage:
    """Compile and link a kernel, and return its resource usage.

    Args:
        kernel: Of `fast`.
        arch: Such as `sm_90`.
        has_linker: Whether there is a linker; without one only PTX is counted.

    Raises:
        RuntimeError: It cannot be linked, or the linker's log lacks a figure.
        Exception: Whatever numba raises if it cannot be compiled.
    """
    ptx, _ = compile_for(kernel, arch)
    num_instructions = len(re.findall(r"^\t(?!\.).*;$", ptx, re.MULTILINE))
    if not has_linker:
        return Usage(kernel.name, arch, None, None, None, None, None, num_instructions)
    log = link(ptx, arch)
    return Usage(
        kernel=kernel.name,
        arch=arch,
        # The log has each function twice, before and after linking: the maximum counts.
        registers=max(_numbers(r"[Uu]sed (\d+) registers", log)),
        spill_stores_bytes=sum(_numbers(r"(\d+) bytes spill stores", log)),
        spill_loads_bytes=sum(_numbers(r"(\d+) bytes spill loads", log)),
        shared_bytes=max(_numbers(r"(\d+) bytes smem", log)),
        stack_bytes=max(_numbers(r"(\d+)(?: bytes)? stack", log)),
        ptx_instructions=num_instructions,
    )


@functools.cache
def compile_for(kernel: Kernel, arch: str) -> tuple[str, str]:
    """Compile a kernel to PTX, cached per architecture; return the PTX and its entry's name.

    Args:
        kernel: Of `fast`.
        arch: Such as `sm_90`.

    Raises:
        Exception: Whatever numba raises if it cannot be compiled.
    """
    return compile_offline(kernel, arch)


def link(ptx: str, arch: str) -> str:
    """Link PTX to machine code, and return the linker's log.

    Raises:
        RuntimeError: It cannot be linked.
    """
    nvjitlink: Any = importlib.import_module("cuda.bindings.nvjitlink")
    text = ptx.encode()
    handle = nvjitlink.create(2, [f"-arch={arch}", "-verbose"])
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        raise RuntimeError(f"cannot be linked: {_text(log) or error}") from error
    finally:
        nvjitlink.destroy(handle)
    return _text(log)


def _numbers(pattern: str, log: str) -> list[int]:
    """Return all numbers that match a pattern in the linker's log.

    Raises:
        RuntimeError: There are none: a missing figure is not a zero.
    """
    found = [int(number) for number in re.findall(pattern, log)]
    if not found:
        raise RuntimeError(f"nvJitLink's log has nothing like {pattern!r}: {log}")
    return found


def _text(log: bytearray) -> str:
    """Decode a log, without its terminating zero."""
    return log.decode(errors="replace").rstrip("\0").strip()
