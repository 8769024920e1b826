"""Compare the results of kernels on this machine's GPU with those of the native runner.

Each launch of a standard batch is made on the GPU, and on copies of its arguments natively, with
the PTX for that GPU. All arrays must be equal afterwards, whether the kernel writes to them or not.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from conformance.native import launch_natively
from fast.kernels.cuda import Kernel
from fast.launch import simulated_by
from fast.launchers import launch_on_gpu
from kvtwin.kernels.standard_batches import STANDARD_BATCHES

SLEEP_CYCLES: Final = 5_000_000
"""About 3 ms of GPU time, in which the host enqueues a launch, as in torch's own tests."""

NUM_RUNS: Final = 10
"""The number of runs of each standard batch; the median time is shown."""

TimedLaunch: TypeAlias = Callable[[Kernel, tuple[int, int], int, Any], float]
"""Launches a kernel, and returns the microseconds that it takes."""


@dataclasses.dataclass
class Comparison:
    """A kernel on a GPU, and natively, in `NUM_RUNS` runs of a standard batch.

    Attributes:
        kernel: Its name.
        elements: Elements of the result in one run.
        executed: PTX instructions executed natively, in all runs.
        times_us: The GPU time of each launch.
        differing: The first difference between the GPU and the native runner; empty if none.
    """

    kernel: str
    elements: int
    executed: int = 0
    times_us: list[float] = dataclasses.field(default_factory=list)
    differing: str = ""

    @property
    def executed_per_element(self) -> float:
        """The PTX instructions executed per element."""
        return self.executed / NUM_RUNS / self.elements

    @property
    def time_us(self) -> float:
        """The GPU time of the launches of one run."""
        return statistics.median(self.times_us) * len(self.times_us) / NUM_RUNS


def main() -> int:
    """Compare all kernels on the current GPU, print a table, and return the exit status."""
    if not torch.cuda.is_available():
        print(
            "there is no GPU to compare with: torch.cuda.is_available() is False", file=sys.stderr
        )
        return 2
    major, minor = torch.cuda.get_device_capability()
    found = compare("cuda", _launch_timed, f"sm_{major}{minor}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(make_table(found, torch.cuda.get_device_name()))
    differing = [one for one in found if one.differing]
    for one in differing:
        print(f"{one.kernel} differs: {one.differing}")
    if not differing:
        print(f"ok: {len(found)} kernels do the same on the GPU and natively")
    return int(bool(differing))


def compare(device: str, launch: TimedLaunch, arch: str) -> list[Comparison]:
    """Run all standard batches on a device, and each launch natively too.

    Args:
        device: The device of the tensors.
        launch: Launches a kernel there.
        arch: The architecture of the device, such as `sm_90`.
    """
    found = {
        name: Comparison(name, num_elements)
        for batch in STANDARD_BATCHES
        for name, num_elements in batch.elements.items()
    }

    def launch_both(kernel: Any, grid: tuple[int, int], threads: int, args: Any) -> None:  # noqa: ANN401  # what `simulated_by` calls
        one = found[kernel.name]
        copies = [_copy(arg) for arg in args]
        one.times_us.append(launch(kernel, grid, threads, args))
        seed = len(one.times_us)
        one.executed += launch_natively(
            kernel, grid, threads, copies, seed=seed, has_shadow=False, arch=arch
        )
        one.differing = one.differing or _difference(kernel, args, copies)

    for batch in STANDARD_BATCHES:
        for _ in range(NUM_RUNS):
            with simulated_by(launch_both, threads=1024):
                batch.run(device)
    return list(found.values())


def make_table(found: Iterable[Comparison], device: str) -> Table:
    """Return the table of kernels: results, instructions and times."""
    table = Table(
        title=f"native and {device}",
        caption="executed: instructions of PTX, counted natively",
        box=box.SIMPLE_HEAD,
    )
    for heading in ("kernel", "results"):
        table.add_column(heading, no_wrap=True)
    for heading in ("elements", "executed/element", "us", "ns/element"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            one.kernel,
            "differ" if one.differing else "equal",
            f"{one.elements:,}",
            f"{one.executed_per_element:.2f}",
            f"{one.time_us:.1f}",
            f"{1000 * one.time_us / one.elements:.2f}",
            style="bold red" if one.differing else None,
        )
    return table


def _launch_timed(kernel: Kernel, grid: tuple[int, int], threads: int, args: Any) -> float:  # noqa: ANN401  # tensors and ints
    """Launch a kernel on the current GPU, which sleeps until all is enqueued; return its time."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001  # as torch's tests
    begin.record()
    launch_on_gpu(kernel, torch.cuda.current_device(), grid, threads, args)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end) * 1000)


def _copy(arg: torch.Tensor | int) -> torch.Tensor | int:
    """Return a copy of an argument on the CPU."""
    return arg.to("cpu", copy=True) if isinstance(arg, torch.Tensor) else arg


def _difference(kernel: Kernel, args: Sequence[Any], copies: Sequence[Any]) -> str:
    """Return which argument differs and where first; empty if none does."""
    names = kernel.py_func.__code__.co_varnames
    for name, arg, copy in zip(names, args, copies, strict=False):
        if isinstance(arg, torch.Tensor):
            there = arg.cpu()
            unlike = (there != copy).nonzero()
            if len(unlike):
                at = tuple(unlike[0].tolist())
                return f"{name}{list(at)} is {there[at]}, natively {copy[at]}"
    return ""
