"""The simulator against numba's own: the same kernels, the same results.

Numba's simulator is chosen by an environment variable before numba is imported, so it runs in
another process: this file, as a script, which prints its results.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # each simulator puts its own in place


def divide(x: int, y: int) -> tuple[int, int]:
    """Return quotient and remainder: a device function."""
    return x // y, x % y


def slots(table: Array, request: Array, positions: Array, block_size: int, out: Array) -> None:
    """Find the slot of each token in a block table; -1 for a negative position."""
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = -1
        if positions[i] >= 0:
            column, offset = divide(positions[i], block_size)
            out[i] = np.int64(table[request[i], column]) * np.int64(block_size) + offset


def scan(x: Array, totals: Array) -> None:
    """Sum up each block's part of x in place, with shared memory and barriers."""
    shared = cuda.shared.array(16, np.int64)
    i = cuda.threadIdx.x
    at = cuda.grid(1)
    shared[i] = x[at]
    offset = 1
    while offset < 16:
        cuda.syncthreads()
        addend = np.int64(0)
        if i >= offset:
            addend = shared[i - offset]
        cuda.syncthreads()
        shared[i] += addend
        offset *= 2
    x[at] = shared[i]
    if i == 15:
        totals[cuda.blockIdx.x] = shared[i]


def histogram(x: Array, counts: Array, greatest: Array) -> None:
    """Count values in two dimensions, and find the greatest: atomics on a grid of 2-D blocks."""
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        cuda.atomic.add(counts, (j % 2, x[i, j]), 1)
        cuda.atomic.max(greatest, 0, x[i, j])


def reverse(x: Array, out: Array) -> None:
    """Turn each block's part around by way of local memory, and count the odd ones."""
    local = cuda.local.array(2, np.int32)
    i = cuda.threadIdx.x
    size = cuda.blockDim.x
    local[0] = x[cuda.blockIdx.x, size - 1 - i]
    local[1] = cuda.syncthreads_count(local[0] % 2)
    out[cuda.blockIdx.x, i] = local[0] * 100 + local[1]


def cases() -> list[tuple[Callable[..., None], Any, Any, tuple[Any, ...]]]:
    """Return kernels with their grids, blocks and new arguments, the same in each process."""
    random = np.random.default_rng(5)
    table = random.integers(0, 2**31, (3, 5)).astype(np.int32)
    request = random.integers(0, 3, 50).astype(np.int32)
    positions = random.integers(-3, 80, 50)
    x = random.integers(0, 100, 64)
    values = random.integers(0, 6, (9, 7)).astype(np.int32)
    return [
        (slots, 7, 8, (table, request, positions, 16, np.zeros(50, np.int64))),
        (scan, 4, 16, (x, np.zeros(4, np.int64))),
        (histogram, (3, 2), (4, 4), (values, np.zeros((2, 6), np.int32), np.zeros(1, np.int32))),
        (reverse, 4, 8, (x.reshape(8, 8).astype(np.int32), np.zeros((4, 8), np.int64))),
    ]


def results(run: Callable[..., None]) -> list[list[Any]]:
    """Return the arrays of each case after it was run."""
    found = []
    for kernel, grid, threads, args in cases():
        run(kernel, grid, threads, args)
        found.append([arg.tolist() for arg in args if isinstance(arg, np.ndarray)])
    return found


@pytest.fixture(scope="module")
def numbas_results() -> list[list[Any]]:
    """Return the results of numba's simulator for the cases."""
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip("numba-cuda is not installed")
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(  # noqa: S603  # this Python, this file
        [sys.executable, __file__],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(3))
def test_numbas_own_simulator_gives_the_same_results(
    numbas_results: list[list[Any]], seed: int
) -> None:
    """Slots, a scan, histograms and a reversal are the same, in several orders of the threads."""
    ours = results(lambda *case: simulate(*case, seed=seed))
    assert numbas_results == ours


def test_the_kernels_do_something() -> None:
    """The kernels change their arrays, so that the comparison means something."""
    before = results(lambda *_: None)
    after = results(simulate)
    assert len(cases()) == sum(one != other for one, other in zip(before, after, strict=True))


if __name__ == "__main__":
    from numba import cuda

    divide = cuda.jit(device=True)(divide)

    def run_with_numba(kernel: Any, grid: Any, threads: Any, args: tuple[Any, ...]) -> None:  # noqa: ANN401  # numba's
        """Run a kernel in numba's simulator."""
        cuda.jit(kernel)[grid, threads](*args)

    print(json.dumps(results(run_with_numba)))  # noqa: T201  # for the other process
