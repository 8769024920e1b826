"""The simulator's barriers: when they are refused."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import BarrierError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place
FULL = 0xFFFFFFFF


def synchronize_in_two_branches() -> None:
    """Wait at one barrier in the first thread, and at another in the others."""
    if cuda.laneid == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


@pytest.mark.parametrize("seed", range(4))
def test_a_thread_that_returns_while_others_wait_is_refused(seed: int) -> None:
    def kernel(x: Array) -> None:
        if cuda.threadIdx.x >= x.size:
            return
        cuda.syncthreads()

    message = (
        r"^kernel kernel, block \(0, 0, 0\): thread \(0, 0, 0\) \(and 4 more\) waits at "
        r"syncthreads \(.*test_simulator_barriers.py:\d+\); "
        r"thread \(5, 0, 0\) \(and 2 more\) has returned$"
    )
    with pytest.raises(BarrierError, match=message):
        simulate(kernel, 1, 8, (np.zeros(5),), seed=seed)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            synchronize_in_two_branches,
            r"thread \(0, 0, 0\) waits at .*; thread \(1, 0, 0\)",
        ),
        (
            lambda: cuda.syncwarp() if cuda.laneid == 0 else cuda.syncthreads(),
            r"thread \(0, 0, 0\) waits at syncwarp of lanes 0xffffffff; thread \(1, 0, 0\) \(and",
        ),
        (
            lambda: cuda.syncwarp(0b1110) if cuda.laneid == 0 else None,
            "cuda.syncwarp with mask 0x0000000e, which must have 32 bits and include the",
        ),
        (
            lambda: cuda.syncwarp(2**32 | 1) if cuda.laneid == 0 else None,
            "cuda.syncwarp with mask 0x100000001, which must have 32 bits",
        ),
        (  # lanes with different masks wait for each other for ever
            lambda: cuda.syncwarp((0b101, 0b011, 0b110)[cuda.laneid]),
            r"waits at .* 0x00000005; thread .* waits at .* 0x00000003; thread .* waits at",
        ),
    ],
)
def test_threads_that_cannot_meet_are_reported(kernel: Any, message: str) -> None:  # noqa: ANN401  # a kernel
    with pytest.raises(BarrierError, match=message):
        simulate(kernel, 1, 3, ())
