"""Measure the host cost of a kernel launch, with and without numba's dispatcher.

    python -m kvtwin.bench.launches

The kernel takes four tensors and an int, and does nothing. On a machine without a GPU the driver
does nothing either (`kvtwin.bench.no_driver`), so the time excludes what a real driver takes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("kvtwin.bench.launches", "bench,cuda")

from collections.abc import Callable
from typing import Any, Final

import torch

from fast.kernels.cuda import Kernel, cuda
from fast.launch import launch_blocks
from fast.launchers import LAUNCHERS, launched_by
from kvtwin.bench.device import host_cost_us
from kvtwin.bench.no_driver import NoDriver
from kvtwin.bench.timing import Spin, time_in_turn

SIGNATURE: Final = "void(int32[:, ::1], int64[::1], int32[::1], int64[::1], int64)"


def do_nothing(table: Any, positions: Any, requests: Any, slots: Any, block_size: Any) -> None:
    """Do nothing, in a way that the compiler cannot optimise away."""
    if cuda.grid(1) > 2**30:
        slots[0] = table[0, 0] * block_size + positions[0] + requests[0]


def make_launch(device: str) -> Callable[[], None]:
    """Return a call that launches a new kernel with four tensors and an int."""
    kernel = Kernel(do_nothing, SIGNATURE, threads=128)
    table = torch.zeros(64, 128, dtype=torch.int32, device=device)
    positions, slots = (torch.zeros(1024, dtype=torch.int64, device=device) for _ in range(2))
    requests = torch.zeros(1024, dtype=torch.int32, device=device)
    return lambda: launch_blocks(kernel, 8, 2, table, positions, requests, slots, 16)


def main() -> int:
    """Measure, and print a line for each launcher."""
    torch.set_num_threads(1)
    is_on_gpu = torch.cuda.is_available()
    if not is_on_gpu:
        NoDriver()
    launch = make_launch("cuda" if is_on_gpu else "cpu")
    left_out = "" if is_on_gpu else ", a driver's part left out"
    for name in LAUNCHERS:
        with launched_by(name):
            if is_on_gpu:
                cost_us = host_cost_us(launch)
            else:
                cost_us = time_in_turn({name: launch}, Spin())[name].median_us
        print(f"host cost of a launch, {name}: {cost_us:.1f} us{left_out}")
    return 0
