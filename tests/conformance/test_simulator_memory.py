"""The simulator's shared and local memory: whose it is, and that it must be written first."""

import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import UninitializedReadError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


def test_an_index_error_names_the_block_and_the_thread() -> None:
    def kernel(x: Array) -> None:
        row = cuda.blockIdx.y
        x[row, cuda.threadIdx.x + row] = 1

    message = (
        "kernel kernel, block (0, 1, 0), thread (2, 0, 0): x[1, 3] is outside its shape (2, 3)"
    )
    for seed in range(4):
        with pytest.raises(IndexError, match=re.escape(message)):
            simulate(kernel, (1, 2), 3, (np.zeros((2, 4))[:, :3],), seed=seed)


def test_shared_memory_must_be_written_before_it_is_read() -> None:
    def kernel(out: Array) -> None:
        shared = cuda.shared.array((4,), np.int32)
        i = cuda.threadIdx.x
        if i < 3:
            shared[i] = i
        cuda.syncthreads()
        out[i] = shared[i]

    message = r"shared array \(.*\)\[3\] is read, but never"
    with pytest.raises(UninitializedReadError, match=message):
        simulate(kernel, 1, 4, (np.zeros(4),))


def test_shared_memory_is_blank_again_in_the_next_block() -> None:
    def kernel(out: Array) -> None:
        shared = cuda.shared.array(1, np.int32)
        if cuda.blockIdx.x == 1:
            shared[0] = 1
        out[cuda.blockIdx.x] = shared[0]

    for seed in range(4):
        with pytest.raises(UninitializedReadError):
            simulate(kernel, 2, 1, (np.zeros(2),), seed=seed)


def test_local_memory_is_each_threads_own() -> None:
    def kernel(out: Array, row: int) -> None:
        local = cuda.local.array((2, 2), np.float32)
        i = cuda.threadIdx.x
        local[i, 0] = 0.5 + i
        cuda.syncthreads()
        out[i] = local[i if row < 0 else row, 0]

    out = np.zeros(2)
    simulate(kernel, 1, 2, (out, -1))
    assert [0.5, 1.5] == out.tolist()
    message = r"thread \(1, 0, 0\): local array \(.*\)\[0, 0\] is read, but never written"
    with pytest.raises(UninitializedReadError, match=message):
        simulate(kernel, 1, 2, (out, 0))
