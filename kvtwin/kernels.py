"""Compile every kernel of `fast` for several GPUs, on a machine that has none.

    kvtwin kernels [--arch sm_90 ...] [--json]

numba-cuda compiles each kernel to PTX, and nvJitLink links it to machine code. The table shows the
resources that a kernel needs on a GPU. `--json` prints `schema_version`, `kernels` with the fields
of `Usage`, and `failures` with those of `Failure`.
"""

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("kernels")

import argparse
import dataclasses
import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

import fast.kernels
from conformance.native.offline_compiler import compile_offline
from fast.kernels.cuda import KERNELS, Kernel, import_cuda
from kvtwin.parser import Parser, beside_json, write_json

SCHEMA_VERSION: Final = 1
"""Of what `--json` prints."""

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
"""The GPUs for which kernels are compiled: A100, H100 and H200, B200, B300, and RTX 50."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a kernel takes of one architecture's GPU.

    Attributes:
        kernel: Its name.
        arch: The architecture, such as `sm_90`.
        registers: For each thread.
        spill_stores_bytes: Stored to memory by each thread for want of registers.
        spill_loads_bytes: Loaded from memory by each thread for want of registers.
        shared_bytes: Shared memory of each block, as the linker counts it: for sm_90 with the KiB
            that the system takes from a block that has any, and without what a launch adds.
        stack_bytes: Of each thread.
        ptx_instructions: In the text that numba writes: a measure of the work.
    """

    kernel: str
    arch: str
    registers: int
    spill_stores_bytes: int
    spill_loads_bytes: int
    shared_bytes: int
    stack_bytes: int
    ptx_instructions: int

    @property
    def has_spills(self) -> bool:
        """Whether registers ran out."""
        return self.spill_stores_bytes + self.spill_loads_bytes > 0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A kernel that could not be compiled.

    Attributes:
        kernel: Its name.
        arch: The architecture, such as `sm_90`.
        error: What the compiler said.
    """

    kernel: str
    arch: str
    error: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(argv)
    try:
        check_toolchain()
    except ImportError as error:
        parser.error(str(error))
    kernels = find_kernels()
    usages: list[Usage] = []
    failures: list[Failure] = []
    for kernel in kernels:
        for arch in options.arch or ARCHITECTURES:
            try:
                usages.append(measure(kernel, arch))
            except Exception as error:  # noqa: BLE001  # whatever a compiler raises is reported
                failures.append(Failure(kernel.name, arch, str(error)))
    if options.json is not None:
        report = {"schema_version": SCHEMA_VERSION, "kernels": usages, "failures": failures}
        write_json(report, options.json)
    if usages:
        with beside_json(options.json):
            Console().print(make_table(usages))
    for failure in failures:
        print(f"{failure.kernel} for {failure.arch}: {failure.error}", file=sys.stderr)
    spilling = [usage for usage in usages if usage.has_spills]
    for usage in spilling:
        print(
            f"{usage.kernel} for {usage.arch} spills: it stores {usage.spill_stores_bytes} bytes "
            f"and loads {usage.spill_loads_bytes}",
            file=sys.stderr,
        )
    if not kernels:
        print("fast.kernels has no kernels", file=sys.stderr)
    return int(bool(failures or spilling or not kernels))


def check_toolchain() -> None:
    """Check that what compiles kernels is installed.

    Raises:
        ImportError: numba-cuda, NVVM or nvJitLink is not.
    """
    import_cuda()
    for name in ("nvvm", "nvjitlink"):
        try:
            importlib.import_module(f"cuda.bindings.{name}").version()  # loads the library
        except (ImportError, RuntimeError) as error:
            raise ImportError(f"kernels need {name}: pip install kvtwin[cuda] ({error})") from error


def find_kernels() -> list[Kernel]:
    """Import all modules of `fast.kernels`, and return the kernels that they declare."""
    for module in pkgutil.walk_packages(fast.kernels.__path__, "fast.kernels."):
        importlib.import_module(module.name)
    return list(KERNELS)


def measure(kernel: Kernel, arch: str) -> Usage:
    """Compile and link a kernel, and return what it takes.

    Args:
        kernel: Of `fast`.
        arch: Such as `sm_90`.

    Raises:
        RuntimeError: It cannot be linked, or the linker does not say what it takes.
        Exception: Whatever numba raises if it cannot be compiled.
    """
    ptx, _ = compile_for(kernel, arch)
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
        ptx_instructions=len(re.findall(r"^\t(?!\.).*;$", ptx, re.MULTILINE)),
    )


@functools.cache
def compile_for(kernel: Kernel, arch: str) -> tuple[str, str]:
    """Compile a kernel to PTX, once for each architecture, and return it and its entry's name.

    Args:
        kernel: Of `fast`.
        arch: Such as `sm_90`.

    Raises:
        Exception: Whatever numba raises if it cannot be compiled.
    """
    return compile_offline(kernel, arch)


def link(ptx: str, arch: str) -> str:
    """Link PTX to machine code, and return what the linker says of it.

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


def make_table(usages: Sequence[Usage]) -> Table:
    """Return a table of kernels and architectures; spills stand out."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="spills: bytes stored/loaded; shared, stack: bytes; PTX: instructions",
    )
    for heading in ("kernel", "arch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("registers", "spills", "shared", "stack", "PTX"):
        table.add_column(heading, justify="right", no_wrap=True)
    for usage in usages:
        table.add_row(
            usage.kernel,
            usage.arch,
            str(usage.registers),
            f"{usage.spill_stores_bytes}/{usage.spill_loads_bytes}",
            str(usage.shared_bytes),
            str(usage.stack_bytes),
            str(usage.ptx_instructions),
            style="bold red" if usage.has_spills else None,
        )
    return table


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin kernels",
        description="Compile every kernel for several GPUs, on a machine that has none.",
        examples=("", "--arch sm_90 --arch sm_120 --json"),
        statuses={
            0: "all kernels compile",
            1: "a kernel spills registers, or does not compile",
        },
    )
    parser.add_argument(
        "--arch",
        action="append",
        type=_architecture,
        help=f"an architecture; may be repeated (default: {', '.join(ARCHITECTURES)})",
    )
    parser.add_json("the table")
    return parser


def _architecture(text: str) -> str:
    """Return the name of an architecture, as given."""
    if not re.fullmatch(r"sm_\d{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text} is not an architecture such as sm_90")
    return text


def _numbers(pattern: str, log: str) -> list[int]:
    """Return all numbers that a pattern finds in the linker's log.

    Raises:
        RuntimeError: It finds none: a missing figure is not a zero.
    """
    found = [int(number) for number in re.findall(pattern, log)]
    if not found:
        raise RuntimeError(f"nvJitLink's log has nothing like {pattern!r}: {log}")
    return found


def _text(log: bytearray) -> str:
    """Return a log without the zero that ends it."""
    return log.decode(errors="replace").rstrip("\0").strip()
