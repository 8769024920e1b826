"""The command line of `kvtwin kernels`; the package's docstring describes it."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from fast.kernels.cuda import Kernel
from kvtwin.kernels import on_gpu, record, successor
from kvtwin.kernels.standard_batches import count_instructions
from kvtwin.kernels.usage import (
    ARCHITECTURES,
    Failure,
    Usage,
    check_toolchain,
    find_kernels,
    measure,
    why_no_linker,
)
from kvtwin.parser import Parser, redirect_stdout_for_json, write_json

SCHEMA_VERSION: Final = 1
"""The version of the `--json` output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(argv)
    if (options.check or options.record) and not record.RECORD.parent.is_dir():
        parser.error(f"the record is in the repository only: there is no {record.RECORD.parent}")
    try:
        check_toolchain()
    except ImportError as error:
        parser.error(str(error))
    if options.gpu or options.successor:
        return on_gpu.main() if options.gpu else successor.main()
    kernels, archs = find_kernels(), options.arch or ARCHITECTURES
    linker_is_missing = why_no_linker()
    usages, failures = measure_all(kernels, archs, archs, has_linker=not linker_is_missing)
    _show(usages, failures, options.json)
    wrong = [f"{failure.kernel} for {failure.arch}: {failure.error}" for failure in failures]
    wrong += find_wrong(usages, is_compared=options.check)
    if not kernels:
        wrong.append("fast.kernels has no kernels")
    if linker_is_missing:
        unknown = f"registers, spills, shared memory and stack are not known: {linker_is_missing}"
        print(unknown, file=sys.stderr)
        if options.record:
            wrong.append("nothing is recorded")
    for line in wrong:
        print(line, file=sys.stderr)
    if options.record and not wrong:
        record.write(usages, record.RECORD)
        print(f"written to {record.RECORD}")
    return int(bool(wrong))


def _show(usages: Sequence[Usage], failures: Sequence[Failure], path: Path | None) -> None:
    """Print the table; if a path is given, also print JSON or write it to that file."""
    if path is not None:
        report = {"schema_version": SCHEMA_VERSION, "kernels": usages, "failures": failures}
        write_json(report, path)
    if usages:
        with redirect_stdout_for_json(path):
            Console(width=None if sys.stdout.isatty() else 120).print(make_table(usages))


def find_wrong(usages: Sequence[Usage], *, is_compared: bool) -> list[str]:
    """Return a line for each kernel that spills and, if compared, each figure above the record.

    Args:
        usages: The resource usage of kernels.
        is_compared: Whether it is compared with the record.
    """
    wrong = [
        f"{usage.kernel} for {usage.arch} spills: it stores {usage.spill_stores_bytes} bytes "
        f"and loads {usage.spill_loads_bytes}"
        for usage in usages
        if usage.has_spills
    ]
    if is_compared and (worse := list(record.compare(usages, record.RECORD))):
        wrong += [*worse, f"if this is meant, commit what `{record.COMMAND}` writes"]
    return wrong


def measure_all(
    kernels: Sequence[Kernel],
    archs: Sequence[str],
    counted: Sequence[str],
    *,
    has_linker: bool = True,
) -> tuple[list[Usage], list[Failure]]:
    """Return the resource usage of kernels, kernel by kernel, and failures to compile or run.

    Args:
        kernels: The kernels.
        archs: The architectures.
        counted: The architectures for which kernels are run to count instructions, which is slow.
        has_linker: Whether there is a linker.
    """
    usages: dict[tuple[str, str], Usage] = {}
    failures: list[Failure] = []
    for kernel in kernels:
        for arch in archs:
            try:
                usages[kernel.name, arch] = measure(kernel, arch, has_linker=has_linker)
            except Exception as error:  # noqa: BLE001  # whatever a compiler raises is reported
                failures.append(Failure(kernel.name, arch, str(error)))
    for arch in counted:
        names = [name for name, its_arch in usages if its_arch == arch]
        try:
            counts = count_instructions(names, arch)
        except Exception as error:  # noqa: BLE001  # likewise, and what the native runner raises
            failures.append(Failure("a standard batch", arch, str(error)))
            continue
        for name, count in counts.items():
            usage = usages[name, arch]
            usages[name, arch] = dataclasses.replace(usage, executed_per_element=round(count, 2))
    return list(usages.values()), failures


def make_table(usages: Sequence[Usage]) -> Table:
    """Return a table of kernels and architectures; spills are highlighted."""
    table = Table(
        box=box.SIMPLE_HEAD,
        caption="spills: bytes stored/loaded; shared, stack: bytes; PTX: instructions;"
        " executed: instructions for each element of a standard batch",
    )
    for heading in ("kernel", "arch"):
        table.add_column(heading, no_wrap=True)
    for heading in ("registers", "spills", "shared", "stack", "PTX", "executed"):
        table.add_column(heading, justify="right", no_wrap=True)
    for usage in usages:
        spills = f"{_shown(usage.spill_stores_bytes)}/{_shown(usage.spill_loads_bytes)}"
        table.add_row(
            usage.kernel,
            usage.arch,
            _shown(usage.registers),
            spills,
            _shown(usage.shared_bytes),
            _shown(usage.stack_bytes),
            str(usage.ptx_instructions),
            _shown(usage.executed_per_element),
            style="bold red" if usage.has_spills else None,
        )
    return table


def _shown(figure: float | None) -> str:
    """Return a figure as text; a dash if it is not known."""
    return "-" if figure is None else f"{figure:g}"


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        prog="kvtwin kernels",
        description="Show the resource usage of each CUDA kernel on several GPUs, without a GPU.",
        examples=("", "--arch sm_90 --arch sm_120 --json", "--check", "--record"),
        statuses={
            0: "all kernels compile",
            1: "a kernel spills registers or does not compile, a figure is more than 10% above the"
            " record, or the results on a GPU differ",
        },
    )
    add = parser.add_argument
    add(
        "--arch",
        action="append",
        type=_architecture,
        help=f"an architecture; may be repeated (default: {', '.join(ARCHITECTURES)})",
    )
    parser.add_json("the table")
    among = parser.add_mutually_exclusive_group()
    among.add_argument(
        "--check", action="store_true", help=f"compare with the figures in {record.RECORD.name}"
    )
    among.add_argument(
        "--record", action="store_true", help=f"write the figures to {record.RECORD.name}"
    )
    among.add_argument(
        "--gpu",
        action="store_true",
        help="compare the results of kernels on this machine's GPU with those of the native runner",
    )
    among.add_argument(
        "--successor",
        action="store_true",
        help="compile with numba-cuda-mlir, which must be installed, and compare results natively",
    )
    return parser


def _architecture(text: str) -> str:
    """Return the name of an architecture, as given."""
    if not re.fullmatch(r"sm_\d{2,3}", text):
        raise argparse.ArgumentTypeError(f"{text} is not an architecture such as sm_90")
    return text
