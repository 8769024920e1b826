"""The simulator's races: which accesses need a barrier between them."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import RaceError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


def store(x: Array, i: int) -> None:
    x[i] = 1


def load(x: Array, i: int) -> None:
    _ = x[i]


def add(x: Array, i: int) -> None:
    cuda.atomic.add(x, i, 1)


ACCESSES = {"store": store, "load": load, "atomic": add}
SAFE = {("load", "load"), ("atomic", "atomic")}
PAIRS = [(one, other) for one in ACCESSES for other in ACCESSES]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("has_barrier", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_accesses_of_two_threads_race(one: str, other: str, blocks: int, has_barrier: bool) -> None:
    first, second = ACCESSES[one], ACCESSES[other]

    def kernel(x: Array) -> None:
        thread = cuda.grid(1)
        if thread == 0:
            first(x, 1)
        if has_barrier:
            cuda.syncthreads()
        if thread > 0:
            second(x, 1)

    for seed in range(4):
        if (one, other) in SAFE or (has_barrier and blocks == 1):
            simulate(kernel, blocks, 2 // blocks, (np.zeros(2),), seed=seed)
            continue
        with pytest.raises(RaceError, match=r"x\[1\]: this (\w+) races with the (\w+) by block"):
            simulate(kernel, blocks, 2 // blocks, (np.zeros(2),), seed=seed)


def test_the_message_names_both_accesses() -> None:
    def kernel(x: Array) -> None:
        if cuda.blockIdx.x == 1 and cuda.threadIdx.y == 1:
            x[0, 2] = 5
        if cuda.blockIdx.x == 0 and cuda.threadIdx.y == 0:
            _ = x[0, 2]

    storing, loading = (f"block ({i}, 0, 0), thread (0, {i}, 0)" for i in (1, 0))
    found = set()
    for seed in range(8):
        with pytest.raises(RaceError) as error:
            simulate(kernel, 2, (1, 2), (np.zeros((1, 3)),), seed=seed)
        found.add(str(error.value))
    assert {
        f"kernel kernel, {this}: x[0, 2]: this {access} races with the {earlier} by {other}: "
        "no barrier orders them"
        for this, access, other, earlier in (
            (storing, "store", loading, "load"),
            (loading, "load", storing, "store"),
        )
    } == found


def test_a_load_by_many_is_remembered_for_each_of_them() -> None:
    def kernel(x: Array, storing: int) -> None:
        i = cuda.threadIdx.x
        if i != storing:
            _ = x[0]
        cuda.syncwarp()  # all loads of this warp come before the store
        if i == storing:
            x[0] = 1

    simulate(kernel, 1, 32, (np.zeros(1), 5))
    for storing in (5, 32, 63):  # the threads of the other warp did not meet this one
        with pytest.raises(RaceError):
            simulate(kernel, 1, 64, (np.zeros(1), storing))


def test_the_loads_of_earlier_intervals_are_ordered_by_the_barrier() -> None:
    def kernel(x: Array) -> None:
        for turn in range(4):
            _ = x[0]
            cuda.syncthreads()
            if cuda.threadIdx.x == turn:
                x[0] = turn
            cuda.syncthreads()

    x = np.zeros(1, np.int64)
    simulate(kernel, 1, 4, (x,))
    assert [3] == x.tolist()


def test_the_loads_of_ended_blocks_still_race() -> None:
    def kernel(x: Array, storing: int) -> None:
        if cuda.blockIdx.x == storing:
            x[0] = 1
        else:
            _ = x[0]

    for seed in range(5):
        with pytest.raises(RaceError):
            simulate(kernel, 4, 3, (np.zeros(1), 2), seed=seed)


def test_what_follows_a_syncwarp_is_not_ordered_by_it() -> None:
    def kernel(x: Array) -> None:
        cuda.syncwarp()
        if cuda.laneid == 0:
            x[0] = 1
        else:
            _ = x[0]

    for seed in range(4):
        with pytest.raises(RaceError):
            simulate(kernel, 1, 2, (np.zeros(1),), seed=seed)


def test_syncwarp_orders_the_lanes_that_its_mask_names() -> None:
    def kernel(x: Array, mask: int, last: int) -> None:
        lane = cuda.laneid
        if lane == 0:
            x[0] = 1
        if mask >> lane & 1:
            cuda.syncwarp(mask)
        if lane == last:
            _ = x[0]

    simulate(kernel, 1, 8, (np.zeros(1), 0b1001, 3))
    for mask, last in ((0b1001, 2), (0b1010, 3)):
        with pytest.raises(RaceError):
            simulate(kernel, 1, 8, (np.zeros(1), mask, last))


def test_syncwarp_orders_by_way_of_a_third_lane() -> None:
    def kernel(x: Array, through: int) -> None:
        lane = cuda.laneid
        if lane == 0:
            x[0] = 1
        if lane <= 1:
            cuda.syncwarp(0b0011)
        if lane in (through, 2):
            cuda.syncwarp(1 << through | 0b0100)
        if lane == 2:
            _ = x[0]

    simulate(kernel, 1, 4, (np.zeros(1), 1))
    with pytest.raises(RaceError):
        simulate(kernel, 1, 4, (np.zeros(1), 3))


def test_a_fence_orders_no_memory() -> None:
    def kernel(x: Array) -> None:
        if cuda.laneid == 0:
            x[0] = 1
        cuda.threadfence()
        _ = x[0]

    with pytest.raises(RaceError):
        simulate(kernel, 1, 2, (np.zeros(1),))


def test_arrays_that_overlap_race_as_one() -> None:
    def kernel(x: Array, y: Array) -> None:
        i = cuda.threadIdx.x
        x[i] = y[i]

    memory = np.arange(8)
    simulate(kernel, 1, 4, (memory[::2], memory[1::2]))
    with pytest.raises(RaceError, match=r"(x|y)\[\d\]: this (load|store) races"):
        simulate(kernel, 1, 4, (memory[:4], memory[3:7]))
    with pytest.raises(NotImplementedError, match=r"arrays x \(int64\) and y \(int32\) overlap"):
        simulate(kernel, 1, 4, (memory[:4], memory[:4].view(np.int32)))


def test_a_scan_without_its_second_barrier_races() -> None:
    def scan(x: Array, is_right: bool) -> None:
        shared = cuda.shared.array(16, np.int64)
        i = cuda.threadIdx.x
        shared[i] = x[i]
        offset = 1
        while offset < 16:
            cuda.syncthreads()
            addend = shared[i - offset] if i >= offset else 0
            if is_right:
                cuda.syncthreads()
            shared[i] += addend
            offset *= 2
        x[i] = shared[i]

    x = np.arange(16)
    simulate(scan, 1, 16, (x, True))
    assert np.cumsum(np.arange(16)).tolist() == x.tolist()
    with pytest.raises(RaceError, match="shared array"):
        simulate(scan, 1, 16, (np.arange(16), False))
