"""Compile the kernels with numba-cuda-mlir, the successor of numba-cuda, and run them natively.

    kvtwin kernels --successor

It reports which kernels compile, and whether their results equal those of numba-cuda; `fast` does
not use it. Both compilers must be installed. If the compiler intrinsics of a kernel do not compile,
loops over bytes replace them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final
from unittest import mock

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from conformance.native import launch_natively
from fast import numba_cuda
from fast.kernels.cuda import Kernel
from fast.numba_cuda import Argument
from kvtwin.kernels import on_gpu

PACKAGE: Final = "numba_cuda_mlir"
ARCH: Final = "sm_90"


class Successor:
    """A toolchain of the native runner: numba-cuda-mlir.

    Attributes:
        in_loops: The kernels that compile only with loops over bytes.
    """

    def __init__(self) -> None:
        self.in_loops: set[str] = set()

    def compile(self, kernel: Kernel, arch: str) -> str:
        """Compile a kernel, and return its PTX."""
        capability = divmod(int(arch.removeprefix("sm_")), 10)
        with _installed_in_fast(capability):
            try:
                return numba_cuda.compile_ptx(kernel, capability, lineinfo=True)[0]
            except Exception:  # noqa: BLE001  # whatever it raises, loops may compile
                with mock.patch.object(numba_cuda, "lower", numba_cuda.compile_called):
                    ptx, _ = numba_cuda.compile_ptx(kernel, capability, lineinfo=True)
                self.in_loops.add(kernel.name)
                return ptx

    def flatten(self, args: Sequence[Argument]) -> Sequence[int]:
        """Return the arguments as words; an array is an MLIR memref.

        A memref is the address twice, an offset, the shape, and the strides in items.
        """
        words: list[int] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                words += [arg.data_ptr(), arg.data_ptr(), 0, *arg.shape, *arg.stride()]
            else:
                words.append(int(arg))
        return words


@contextlib.contextmanager
def _installed_in_fast(capability: tuple[int, int]) -> Iterator[None]:
    """Make `fast.numba_cuda` compile with the successor, without a GPU."""
    real: Any = importlib.import_module(f"{PACKAGE}.cuda")
    extending: Any = importlib.import_module(f"{PACKAGE}.extending")
    tools: Any = importlib.import_module(f"{PACKAGE}.tools")
    with (
        mock.patch.object(numba_cuda, "import_cuda", return_value=real),
        mock.patch.object(numba_cuda, "import_intrinsic", return_value=extending.intrinsic),
        # It queries the driver for this even if the architecture is given (0.6.0).
        mock.patch.object(tools, "_cached_cc", capability),
    ):
        yield


def main() -> int:
    """Print a table of the kernels compiled with the successor; return 0, or 2 without it."""
    try:
        importlib.import_module(f"{PACKAGE}.cuda")
    except ImportError as error:
        print(f"needs numba-cuda-mlir[cu13], which is not installed ({error})", file=sys.stderr)
        return 2
    successor, executed, failures = Successor(), Counter[str](), dict[str, str]()

    def launch(kernel: Kernel, grid: tuple[int, int], threads: int, args: Any) -> float:  # noqa: ANN401  # tensors and ints
        try:
            executed[kernel.name] += launch_natively(
                kernel, grid, threads, args, has_shadow=False, arch=ARCH, toolchain=successor
            )
        except Exception as error:  # noqa: BLE001  # whatever it raises is reported
            failures.setdefault(kernel.name, f"{type(error).__name__}: {error}".splitlines()[0])
            launch_natively(kernel, grid, threads, args, has_shadow=False, arch=ARCH)
        return 0.0

    found = on_gpu.compare("cpu", launch, ARCH)
    table = Table(title="numba-cuda-mlir, run natively", box=box.SIMPLE_HEAD)
    for heading in ("kernel", "compiled", "results", "executed", "by numba-cuda"):
        table.add_column(heading)
    for one in found:
        elements = one.elements * on_gpu.NUM_RUNS
        has_failed = one.kernel in failures
        table.add_row(
            one.kernel,
            "fails" if has_failed else "in loops" if one.kernel in successor.in_loops else "yes",
            "-" if has_failed else "differ" if one.differing else "equal",
            "-" if has_failed else f"{executed[one.kernel] / elements:.2f}",
            f"{one.executed_per_element:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for one in found:
        if problem := failures.get(one.kernel) or one.differing:
            print(f"{one.kernel}: {problem}")
    return 0
