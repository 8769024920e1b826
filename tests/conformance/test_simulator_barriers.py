"""The simulator's barriers and warp operations: what they return, and when they are refused."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import BarrierError, UninitializedReadError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place
FULL = 0xFFFFFFFF


def synchronize_in_two_branches() -> None:
    """Wait at one barrier in the first thread, and at another in the others."""
    if cuda.laneid == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


def exchange_or_vote() -> None:
    """Shuffle in the first lane, and vote in the others."""
    if cuda.laneid == 0:
        cuda.shfl_sync(FULL, 1, 0)
    else:
        cuda.ballot_sync(FULL, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_thread_that_returns_while_others_wait_is_refused(seed: int) -> None:
    """A barrier which some threads never reach is found, whichever comes first."""

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
        (
            exchange_or_vote,
            r"waits at shfl_sync of lanes 0xffffffff; thread .* waits at ballot_sync of lanes 0xf",
        ),
    ],
)
def test_threads_that_cannot_meet_are_reported(kernel: Any, message: str) -> None:  # noqa: ANN401  # a kernel
    """Threads that wait at different places, or with masks that do not match, are reported."""
    with pytest.raises(BarrierError, match=message):
        simulate(kernel, 1, 3, ())


def test_lanes_that_have_returned_take_no_part() -> None:
    """A warp operation does not wait for threads that have returned, and cannot read them."""

    def kernel(out: Array, src: int) -> None:
        lane = cuda.laneid
        if lane >= 3:
            return
        out[lane] = cuda.shfl_sync(FULL, lane * 10, src)

    out = np.zeros(3, np.int64)
    simulate(kernel, 1, 8, (out, 2))
    assert [20] * 3 == out.tolist()
    with pytest.raises(UninitializedReadError, match="a shuffle reads lane 5, which does not"):
        simulate(kernel, 1, 8, (out, 5))


def test_a_compaction_is_right_in_every_order() -> None:
    """A compaction, the usual use of warp operations, is right with every seed."""

    def compact(keep: Array, out: Array, count: Array) -> None:
        i = cuda.grid(1)
        is_selected = i < keep.size and keep[min(i, keep.size - 1)]
        ballot = cuda.ballot_sync(FULL, is_selected)
        base = 0
        if cuda.laneid == 0:
            base = cuda.atomic.add(count, 0, cuda.popc(ballot))
        base = cuda.shfl_sync(FULL, base, 0)
        if is_selected:
            out[base + cuda.popc(ballot & cuda.lanemask_lt())] = i

    keep = np.random.default_rng(1).random(150) < 0.5
    orders = set()
    for seed in range(4):
        out, count = np.full(150, -1), np.zeros(1, np.int64)
        simulate(compact, 5, 32, (keep, out, count), seed=seed)
        assert keep.sum() == count[0]
        assert np.flatnonzero(keep).tolist() == sorted(out[: count[0]])
        orders.add(tuple(out))
    assert len(orders) > 1
