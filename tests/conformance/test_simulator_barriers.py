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


def test_barriers_count_what_the_threads_bring() -> None:
    """Three barriers return a count of all threads of the block."""

    def kernel(x: Array, out: Array) -> None:
        i = cuda.threadIdx.x
        out[0, i] = cuda.syncthreads_count(x[i])
        out[1, i] = cuda.syncthreads_and(x[i])
        out[2, i] = cuda.syncthreads_or(x[i])

    for x, expected in (([3, 0, 1], [2, 0, 1]), ([1, 1, 1], [3, 1, 1]), ([0, 0, 0], [0, 0, 0])):
        out = np.full((3, 3), -1)
        simulate(kernel, 1, 3, (np.array(x), out))
        assert [[each] * 3 for each in expected] == out.tolist()


def test_a_kernel_may_pass_many_barriers_with_threads_of_several_warps() -> None:
    """A rotation of 70 values needs two barriers for each step."""

    def kernel(x: Array) -> None:
        i = cuda.threadIdx.x
        for _ in range(3):
            value = x[(i + 1) % 70]
            cuda.syncthreads()
            x[i] = value
            cuda.syncthreads()

    x = np.arange(70)
    simulate(kernel, 1, 70, (x,))
    assert np.roll(np.arange(70), -3).tolist() == x.tolist()


def test_shuffles_return_the_values_of_other_lanes() -> None:
    """Each shuffle is right for a full warp, at both ends of it."""

    def kernel(out: Array) -> None:
        lane = cuda.laneid
        value = 100 + lane
        out[0, lane] = cuda.shfl_sync(FULL, value, 37)  # modulo 32
        out[1, lane] = cuda.shfl_up_sync(FULL, value, 2)
        out[2, lane] = cuda.shfl_down_sync(FULL, value, 3)
        out[3, lane] = cuda.shfl_xor_sync(FULL, value, 1)

    out = np.zeros((4, 32), np.int64)
    simulate(kernel, 1, 32, (out,))
    values = list(range(100, 132))
    assert [105] * 32 == out[0].tolist()
    assert [*values[:2], *values[:30]] == out[1].tolist()
    assert [*values[3:], *values[29:]] == out[2].tolist()
    assert [100 + (lane ^ 1) for lane in range(32)] == out[3].tolist()


def test_votes_and_matches_see_all_lanes_of_the_mask() -> None:
    """Each vote and match is right in a warp of which half takes part."""

    def kernel(x: Array, out: Array) -> None:
        lane = cuda.laneid
        if lane < 4:
            out[0, lane] = cuda.ballot_sync(0xF, x[lane])
            out[1, lane] = cuda.any_sync(0xF, x[lane])
            out[2, lane] = cuda.all_sync(0xF, x[lane])
            out[3, lane] = cuda.eq_sync(0xF, x[lane])
            out[4, lane] = cuda.match_any_sync(0xF, x[lane])
            mask, is_alike = cuda.match_all_sync(0xF, x[lane])
            out[5, lane] = mask
            out[6, lane] = is_alike

    out = np.zeros((7, 4), np.int64)
    simulate(kernel, 1, 8, (np.array([0, 2, 2, 3]), out))
    assert [[0b1110] * 4, [1] * 4, [0] * 4, [0] * 4] == out[:4].tolist()
    assert [[0b0001, 0b0110, 0b0110, 0b1000], [0] * 4, [0] * 4] == out[4:].tolist()
    simulate(kernel, 1, 8, (np.array([2, 2, 2, 2]), out))
    assert [[0b1111] * 4, [1] * 4, [1] * 4, [1] * 4] == out[:4].tolist()
    assert [[0b1111] * 4, [0b1111] * 4, [1] * 4] == out[4:].tolist()


def test_a_full_ballot_is_minus_one_and_has_32_bits() -> None:
    """A ballot is a signed 32-bit number, as in compiled kernels, which popc and masks accept."""

    def kernel(out: Array) -> None:
        ballot = cuda.ballot_sync(FULL, True)
        mask = FULL if cuda.laneid < 7 else ballot
        out[0, cuda.laneid] = cuda.shfl_xor_sync(mask, cuda.laneid, 1)
        out[1, cuda.laneid] = cuda.popc(ballot & cuda.lanemask_lt())
        out[2, cuda.laneid] = ballot + cuda.popc(ballot)

    out = np.zeros((3, 32), np.int64)
    simulate(kernel, 1, 32, (out,))
    assert [[lane ^ 1 for lane in range(32)], [*range(32)], [31] * 32] == out.tolist()


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


def test_parts_of_a_warp_meet_on_their_own() -> None:
    """Lanes in different branches exchange values within their masks."""

    def kernel(out: Array) -> None:
        lane = cuda.laneid
        if lane < 2:
            out[lane] = cuda.shfl_xor_sync(0b0011, lane, 1)
        else:
            out[lane] = cuda.shfl_xor_sync(0b1100, lane, 1)

    out = np.zeros(4, np.int64)
    simulate(kernel, 1, 4, (out,))
    assert [1, 0, 3, 2] == out.tolist()


def test_warps_do_not_wait_for_each_other() -> None:
    """A warp operation concerns one warp, and lanes are counted within it."""

    def kernel(out: Array) -> None:
        i = cuda.threadIdx.x
        if i < 32:
            cuda.syncwarp()
        out[i] = cuda.shfl_sync(FULL, i, 1) if i >= 32 else cuda.laneid

    out = np.zeros(40, np.int64)
    simulate(kernel, 1, 40, (out,))
    assert [*range(32), *[33] * 8] == out.tolist()


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
