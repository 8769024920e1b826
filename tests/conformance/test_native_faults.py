"""Kernels that go wrong as machine code: what is raised, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from conformance.native import Kind, NativeFault, launch_natively
from fast.kernels.cuda import Kernel, cuda
from fast.kernels.moves import fill_bytes

pytest.importorskip("numba_cuda")

Array: TypeAlias = Any


def store_past_end(x: Array, n: int) -> None:
    i = cuda.grid(1)
    if i <= n:
        x[np.uint64(i)] = i


def store_before(x: Array, n: int) -> None:
    i = cuda.grid(1)
    if i < n:
        x[np.uint64(np.int64(i) - 1)] = i


def load_far(x: Array, n: int) -> None:
    x[0] = x[np.uint64(n) << np.uint64(33)]


def wait_in_some(x: Array, n: int) -> None:
    i = cuda.threadIdx.x
    if i < n:
        cuda.syncthreads()
    x[np.uint64(i)] = i


def wait_in_two_branches(x: Array, n: int) -> None:
    """Wait at one barrier in some threads, and at another in the others."""
    i = np.uint32(cuda.threadIdx.x)
    if i < n:
        x[i] = 1
        cuda.syncthreads()
        x[i] = 2
    else:
        x[i] = 3
        cuda.syncthreads()
        x[i] = 4


def index_past_shared(x: Array, n: int) -> None:
    """Load from behind a shared array, before the next one."""
    first = cuda.shared.array(8, np.int32)
    second = cuda.shared.array(8, np.int32)
    i = np.uint32(cuda.threadIdx.x)
    if i < 8:
        first[i] = i
        second[i] = n
    cuda.syncthreads()
    x[i] = first[i] + second[0]


def index_past_local(x: Array, n: int) -> None:
    own = cuda.local.array(4, np.int32)
    for k in range(4):
        own[np.uint32(k)] = x[np.uint32(k)]
    x[cuda.threadIdx.x] = own[np.uint32(n)]


def loop_forever(x: Array, n: int) -> None:
    """Double a number until it is 0, and beyond."""
    i = np.uint32(1)
    while i < n:
        i = np.uint32(i * 2)
    x[0] = i


def load_unwritten(x: Array, n: int) -> None:
    shared = cuda.shared.array(32, np.int32)
    i = np.uint32(cuda.threadIdx.x)
    if i < n:
        shared[i] = i
    cuda.syncthreads()
    x[i] = shared[i]


def load_without_waiting(x: Array, n: int) -> None:
    """Load what another thread stores, without a barrier."""
    shared = cuda.shared.array(32, np.int32)
    i = np.uint32(cuda.threadIdx.x)
    shared[i] = n
    cuda.syncthreads()
    shared[i] += 1
    x[i] = shared[i ^ np.uint32(1)]


def store_alike(x: Array, n: int) -> None:
    if cuda.threadIdx.x == 0:
        x[np.uint64(n)] = 1


CASES: dict[str, tuple[Any, int, int, Kind, str]] = {
    "past the end": (
        store_past_end, 32, 2, Kind.OUTSIDE,
        (r"block \(1, 0, 0\), thread \(0, 0, 0\): this store of 4 bytes at x \+ 128 \(of 128\) "
        r"is outside all arrays, at test_native_faults.py:{line} \(PTX line \d+: st.global.u32 "),
    ),
    "before the beginning": (
        store_before, 32, 1, Kind.OUTSIDE,
        r"thread \(0, 0, 0\): this store of 4 bytes at x \+ -4 ",
    ),
    "far away": (
        load_far, 1, 1, Kind.OUTSIDE,
        r"this load of 4 bytes at x \+ 34359738368 \(of 128\) is outside all arrays",
    ),
    "a barrier that some never reach": (
        wait_in_some, 7, 1, Kind.BARRIER,
        r"thread \(\d+, 0, 0\): (waits at|has returned).*, but thread \(\d+, 0, 0\) (waits|has)",
    ),
    "two barriers": (
        wait_in_two_branches, 7, 1, Kind.BARRIER,
        r"waits at test_native_faults.py:\d+ .*, but thread \(\d+, 0, 0\) waits at test_native_",
    ),
    "past a shared array": (
        index_past_shared, 1, 1, Kind.OUTSIDE_SHARED,
        r"this load of 4 bytes at byte \d+ is outside the block's shared arrays, at .*:{line} ",
    ),
    "past a local array": (
        index_past_local, 4, 1, Kind.OUTSIDE_LOCAL, r"is outside the thread's local arrays, at ",
    ),
    "endless": (
        loop_forever, 2**32, 1, Kind.ENDLESS,
        r"executes more than 1000000 instructions, so it may not terminate",
    ),
    "never written": (
        load_unwritten, 31, 1, Kind.UNINITIALIZED,
        r"thread \(31, 0, 0\): this load of 4 bytes at byte 124 reads uninitialized memory, at ",
    ),
    "a race of threads": (
        load_without_waiting, 5, 1, Kind.RACE,
        (r"this (load|store) of 4 bytes at byte \d+ races with the (load|store) by block "
        r"\(0, 0, 0\), thread \(\d+, 0, 0\): no barrier orders them, at "),
    ),
    "a race of blocks": (
        store_alike, 3, 2, Kind.RACE,
        (r"block \((\d), 0, 0\), thread \(0, 0, 0\): this store of 4 bytes at x \+ 12 .of 128. "
        r"races with the store by block \((?!\1)\d, 0, 0\), thread \(0, 0, 0\): no barrier"),
    ),
}  # fmt: skip


def declare(function: Callable[..., None]) -> Kernel:
    return Kernel(function, "void(int32[::1], int64)", 32)


def run(kernel: Kernel, n: int, grid: int, **options: int) -> torch.Tensor:
    """Run a kernel on an array of 32 elements, and return that."""
    x = torch.zeros(32, dtype=torch.int32)
    launch_natively(kernel, (grid, 1), 32, (x, n), most_instructions=10**6, **options)
    return x


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_described(case: str) -> None:
    function, n, grid, kind, message = CASES[case]
    kernel = declare(function)
    for seed in range(3):
        with pytest.raises(NativeFault, match=f"^kernel {kernel.name}, block ") as raised:
            run(kernel, n, grid, seed=seed)
        fault = raised.value
        assert (kind, kernel.name) == (fault.kind, fault.kernel)
        raised.match(message.replace("{line}", str(fault.line)))
        code = kernel.py_func.__code__
        assert kind is Kind.ENDLESS or fault.line in {line for *_, line in code.co_lines()} | {0}


def fill_misaligned(x: Array, n: int) -> None:
    """Store 4 bytes at once, from a byte on."""
    fill_bytes(x, n, 0, 4)


def test_a_misaligned_access_is_described() -> None:
    kernel = Kernel(fill_misaligned, "void(uint8[::1], int64)", 32)
    x = torch.zeros(32, dtype=torch.uint8)
    launch_natively(kernel, (1, 1), 1, (x, 8))
    message = (
        r"^kernel fill_misaligned, block .*: this store of 4 bytes at x \+ 6 .* is misaligned, at"
    )
    with pytest.raises(NativeFault, match=message) as raised:
        launch_natively(kernel, (1, 1), 1, (x, 6))
    line = fill_misaligned.__code__.co_firstlineno + 2
    assert (Kind.MISALIGNED, 6, line) == (raised.value.kind, raised.value.offset, raised.value.line)


def test_each_kind_is_tested() -> None:
    assert {*Kind} == {kind for *_, kind, _ in CASES.values()} | {Kind.MISALIGNED}


def test_after_a_fault_launches_are_right() -> None:
    kernel = declare(load_unwritten)
    for seed in range(5):
        with pytest.raises(NativeFault):
            run(kernel, 20, 1, seed=seed)
        assert [*range(32)] == run(kernel, 32, 1, seed=seed).tolist()


@pytest.mark.parametrize("case", ["never written", "a race of threads", "a race of blocks"])
def test_without_shadow_memory_a_race_is_no_fault(case: str) -> None:
    function, n, grid, *_ = CASES[case]
    run(declare(function), n, grid, has_shadow=False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.zeros(4, dtype=torch.int32),), "takes 2 arguments, but got 1"),
        ((torch.zeros(4), 1), r"argument x is torch.float32 of shape \(4,\), .* int32\[::1\]$"),
        ((torch.zeros(8, dtype=torch.int32)[::2], 1), r"argument x is .* strides \(2,\), but its"),
        ((torch.zeros((2, 2), dtype=torch.int32), 1), r"argument x is .* of shape \(2, 2\)"),
        ((torch.zeros(4, dtype=torch.int32), 2**63), "argument n is 9223372036854775808, but its"),
        ((3, 1), "argument x is 3, but its type is int32"),
    ],
)
def test_arguments_are_those_of_the_signature(args: tuple[object, ...], message: str) -> None:
    with pytest.raises(TypeError, match=f"^kernel store_alike: {message}"):
        launch_natively(declare(store_alike), (1, 1), 32, args)


@pytest.mark.parametrize(
    ("grid", "threads", "message"),
    [
        ((0, 1), 32, r"grid is \(0, 1\), but must be at least 1"),
        ((1, 65536), 32, r"grid is \(1, 65536\), but must be at least 1 and at most"),
        ((1, 1), 1025, "threads is 1025, but a block has 1 to 1024"),
    ],
)
def test_sizes_are_those_of_a_gpu(grid: tuple[int, int], threads: int, message: str) -> None:
    x = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        launch_natively(declare(store_alike), grid, threads, (x, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: (*words, 0), "takes 8 words, but got 9"),
        (lambda words: words[:-1], "takes 8 words, but got 7"),
        (lambda words: (*words[:5], 31, *words[6:]), r"the words launched for x are \[32, 4, .*31"),
        (lambda words: (*words[:7], 5), r"the words launched for n are \[5\], expected \[1\]"),
    ],
)
def test_launched_words_are_those_of_the_arguments(
    change: Callable[[tuple[int, ...]], tuple[int, ...]],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fast import numba_cuda  # noqa: PLC0415

    real = numba_cuda.make_flatten
    monkeypatch.setattr(
        numba_cuda, "make_flatten", lambda kinds: lambda *args: change(real(kinds)(*args))
    )
    with pytest.raises(TypeError, match=f"^kernel store_alike: {message}"):
        run(declare(store_alike), 1, 1)
