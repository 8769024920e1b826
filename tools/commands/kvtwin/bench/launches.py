"""Measure the host cost of a kernel launch, of a step, and of each function: what is launched.

    python -m kvtwin.bench.launches

A kernel that takes four tensors and an int, and does nothing, is launched with and without numba's
dispatcher. The step decodes for 256 requests, by `prepare_step` and by its functions one by one;
the blocks that are staged for every sixteenth request are appended before. The functions have a
mixed batch of 1,024 requests. On a machine without a GPU the driver does nothing either
(`no_driver.c`), and an upload is a copy in memory: so times exclude what a real driver takes, and
launches, copies and waits are counted.
"""

from __future__ import annotations

if __name__ == "__main__":
    from conformance.entry_point import run

    run("kvtwin.bench.launches", "bench,cuda")

import ctypes
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fast.launch
from conformance.adapters.implementations import FAST
from fast import direct_launch, numba_cuda
from fast.kernels.cuda import Kernel, cuda
from fast.launch import LAUNCHERS, launch_blocks
from fast.pinned import Ring
from kvtwin.bench.jobs import SIZES, Call, Side, make_batch
from kvtwin.bench.measure import best_us, host_cost_us, time_in_turn, time_on_gpu
from kvtwin.bench.steps import FUNCTIONS, Step

SIGNATURE: Final = "void(int32[:, ::1], int64[::1], int32[::1], int64[::1], int64)"
MAX_WORDS: Final = 256
NUM_REQS, NUM_STEPS = 256, 1000  # of the steps that are timed
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

    @property
    def num_launches(self) -> int:
        """How many kernels were launched."""
        return self._global(ctypes.c_long, "num_launches").value  # type: ignore[no-any-return]

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


class _HostStream:
    """The stream of a ring of buffers whose copies end at once."""

    def pin(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")

    def copy(self, pinned: torch.Tensor) -> torch.Tensor:
        return pinned.to("cpu", copy=True)

    def mark(self, _event: Any) -> Any:
        return self

    def query(self) -> bool:
        return True


def fake_device_path() -> None:
    """Make `fast` launch kernels for all tensors, and upload to the host, from now on."""
    ring = Ring(_HostStream())
    fakes = {
        "uses_kernels": lambda _: True,
        "upload": lambda array, _, pin_memory: ring.send(array),  # noqa: ARG005
    }
    for name, module in list(sys.modules.items()):
        for faked, by in fakes.items():
            if name.startswith("fast.") and hasattr(module, faked):
                setattr(module, faked, by)


class Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts torch's operations in its block that take part on a GPU: kernels, copies, waits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.kernels = self.copies = self.waits = 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.copies += name in {"copy_", "_to_copy"}
        self.waits += name in {"_local_scalar_dense", "nonzero"}
        is_free = func.is_view or name.startswith(("copy_", "_", "nonzero", "empty", "new_empty"))
        self.kernels += not is_free
        return func(*args, **(kwargs or {}))


def _count(call: Call, driver: NoDriver) -> str:
    """Make a call, and return how many launches, copies and waits it is."""
    before = driver.num_launches
    with Counts() as counts:
        call()
    launches = driver.num_launches - before + counts.kernels
    return f"{launches} launches, {counts.copies} copies, {counts.waits} waits"


def make_steps(device: str, num_groups: int) -> tuple[Call, dict[str, Call]]:
    """Return what stages blocks, and how the inputs of a step are prepared, in two ways."""
    step = Step(make_batch("decode", NUM_REQS), Side("fast", FAST, device), num_groups)

    def reset() -> None:
        step.appends.reset()
        step.appends()

    return reset, {"by prepare_step": step.prepare, "one by one": step.prepare_parts}


def describe_steps(num_groups: int, driver: NoDriver | None) -> Iterator[str]:
    """Yield a line for each way to prepare a step."""
    reset, ways = make_steps("cuda" if driver is None else "cpu", num_groups)
    for name, call in ways.items():
        times = []
        for _ in range(NUM_STEPS):
            reset()
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e6)
        counted = ""
        if driver is not None:
            reset()
            counted = f"{_count(call, driver)}, "
        groups = "1 group" if num_groups == 1 else f"{num_groups} groups"
        yield f"a step, {groups}, {name}: {counted}{min(times):.0f} us"


def describe_functions(driver: NoDriver | None) -> Iterator[str]:
    """Yield a line for each function that launches or uploads, with a mixed batch."""
    batch = make_batch("mixed", max(SIZES))
    side = Side("fast", FAST, "cuda" if driver is None else "cpu", is_gpu=True)
    for job in FUNCTIONS:
        prepared = job.prepare(batch, side)
        if driver is None:
            [(cost_us, _)] = time_on_gpu([prepared])
            yield f"{job.name}: {cost_us:.0f} us"
            continue
        prepared.call()
        counted = _count(prepared.call, driver)
        if not counted.startswith("0 launches, 0 copies"):
            (prepared.reset or int)()
            yield f"{job.name}: {counted}, {min(time_in_turn([prepared])[0]):.0f} us"


def main() -> int:
    """Measure, and print a line for each launcher, each way to prepare a step, each function."""
    torch.set_num_threads(1)
    is_on_gpu = torch.cuda.is_available()
    driver = None if is_on_gpu else NoDriver()
    launch = make_launch("cuda" if is_on_gpu else "cpu")
    left_out = "" if is_on_gpu else ", a driver's part left out"
    for name in LAUNCHERS:
        launch_by(name)
        cost_us = host_cost_us(launch) if is_on_gpu else best_us(launch)
        print(f"host cost of a launch, {name}: {cost_us:.1f} us{left_out}")
    launch_by("direct")
    if not is_on_gpu:
        fake_device_path()
    for num_groups in (1, 4):
        for line in describe_steps(num_groups, driver):
            print(line + left_out)
    for line in describe_functions(driver):
        print(line + left_out)
    return 0
