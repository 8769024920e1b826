"""Measure the host cost of a kernel launch, with and without numba's dispatcher.

    python -m kvtwin.bench.launches

The kernel takes four tensors and an int, and does nothing. On a machine without a GPU the driver
does nothing either (`no_driver.c`), so the time excludes what a real driver takes.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("kvtwin.bench.launches", "bench,cuda")

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

import fast.launch
from fast import direct_launch, numba_cuda
from fast.kernels.cuda import Kernel, cuda
from fast.launch import LAUNCHERS, launch_blocks
from kvtwin.bench.measure import host_cost_us, time_in_turn

SIGNATURE: Final = "void(int32[:, ::1], int64[::1], int32[::1], int64[::1], int64)"
MAX_WORDS: Final = 64
STREAM: Final = 0x6000
"""The handle that stands for torch's current stream."""

TYPES: Final = {torch.uint8: "|u1", torch.int32: "<i4", torch.int64: "<i8"}


class NoDriver:
    """A CUDA driver that does nothing, in place of this process's; CPU tensors look like CUDA's.

    Raises:
        RuntimeError: There is a GPU, or no C compiler.
    """

    def __init__(self) -> None:
        compiler = shutil.which("cc")
        if torch.cuda.is_available():
            raise RuntimeError("there is a GPU here, which has its own driver")
        if compiler is None:
            raise RuntimeError("a driver that does nothing must be compiled, but there is no cc")
        source = Path(__file__).with_name("no_driver.c")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "libcuda.so.1")
            name = f"-Wl,-soname,{library.name}"
            flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", name]
            subprocess.run([compiler, *flags, "-o", library, source], check=True)  # noqa: S603  # our own
            # Loading a library of this name returns the one that is loaded.
            self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        _fake_cuda_tensors()

    def note(self, num_words: int) -> None:
        """Record `num_words` argument words of each launch from now on; clear the last one's."""
        self._global(ctypes.c_int, "num_words").value = num_words
        self._global(ctypes.c_int64 * MAX_WORDS, "words")[:] = [0] * MAX_WORDS

    def last(self, num_words: int) -> tuple[Any, ...]:
        """Return the last launch: its grid, its threads, its stream, and its argument words."""
        return (
            tuple(self._global(ctypes.c_uint * 3, "launched_grid")),
            tuple(self._global(ctypes.c_uint * 3, "launched_block")),
            self._global(ctypes.c_int64, "launched_stream").value,
            tuple(self._global(ctypes.c_int64 * MAX_WORDS, "words"))[:num_words],
        )

    def _global(self, kind: Any, name: str) -> Any:
        return kind.in_dll(self._library, name)


def _fake_cuda_tensors() -> None:
    """Make torch report that its tensors are on a GPU, in Python, which takes as long as in C."""

    def describe(tensor: torch.Tensor) -> dict[str, Any]:
        return {
            "shape": tuple(tensor.shape),
            "typestr": TYPES[tensor.dtype],
            "strides": None,
            "data": (tensor.data_ptr(), False),
            "version": 2,
        }

    torch.Tensor.get_device = lambda _: 0  # type: ignore[method-assign, assignment]
    torch.Tensor.__cuda_array_interface__ = property(describe)  # type: ignore[assignment]
    fast.launch.current_device = lambda: 0  # type: ignore[attr-defined]
    direct_launch.current_stream = lambda _: STREAM  # type: ignore[attr-defined]
    numba_cuda.current_stream = lambda _: STREAM  # type: ignore[attr-defined]


def launch_by(name: str) -> None:
    """Use the launcher `direct` or `numba` from now on."""
    fast.launch.launcher = lambda: LAUNCHERS[name]  # type: ignore[assignment]


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
        launch_by(name)
        cost_us = host_cost_us(launch) if is_on_gpu else min(time_in_turn([launch])[0])
        print(f"host cost of a launch, {name}: {cost_us:.1f} us{left_out}")
    return 0
