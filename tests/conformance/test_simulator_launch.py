"""The simulator's launches: indices, orders, arguments, and what a kernel's names are bound to."""

import contextlib
import gc
import random
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from conformance.simulator import BarrierError, RaceError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


def order_of(seed: int, blocks: int, threads: int) -> list[int]:
    """Return the order in which the threads of a kernel came, each twice."""

    def append_self(order: Array, count: Array) -> None:
        for _ in range(2):
            place = cuda.atomic.add(count, 0, 1)
            order[place] = cuda.grid(1)

    order, count = np.full(2 * blocks * threads, -1), np.zeros(1, np.int64)
    simulate(append_self, blocks, threads, (order, count), seed=seed)
    return order.tolist()


def test_every_thread_runs_once_and_knows_where_it_is() -> None:
    """Indices, sizes, grid and lanes are right in three dimensions."""

    def kernel(out: Array) -> None:
        x, y, z = cuda.grid(3)
        assert (x, y) == cuda.grid(2)
        assert cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z == z
        assert (4, 6, 2) == cuda.gridsize(3) == (cuda.gridsize(1), *cuda.gridsize(2)[1:], 2)
        assert (2, 3, 1) == (cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z)
        number = cuda.threadIdx.x + 2 * cuda.threadIdx.y + 4 * cuda.threadIdx.z
        assert number % cuda.warpsize == cuda.laneid
        assert cuda.lanemask_lt() == 2**cuda.laneid - 1
        out[x, y, z] += 1

    out = np.zeros((4, 6, 2), np.int64)
    simulate(kernel, (2, 3), (2, 2, 2), (out,))
    assert np.array_equal(np.ones((4, 6, 2)), out)


def test_the_seed_alone_decides_the_order() -> None:
    """Blocks and threads come in many orders, and overtake each other between atomics."""
    orders = [order_of(seed, 3, 4) for seed in range(12)]
    random.seed(2)
    assert orders[7] == order_of(7, 3, 4)
    assert all(sorted([*range(12)] * 2) == sorted(order) for order in orders)
    first_blocks = {order[0] // 4 for order in orders}
    first_threads = {order[0] % 4 for order in orders}
    assert ({0, 1, 2}, {0, 1, 2, 3}) == (first_blocks, first_threads)
    assert any(order[0] != order[1] for order in orders), "no thread was overtaken"


def test_the_order_changes_after_a_barrier() -> None:
    """Threads come in another order in the next interval."""

    def kernel(order: Array, count: Array) -> None:
        for interval in range(2):
            place = cuda.atomic.add(count, interval, 1)
            order[interval, place] = cuda.threadIdx.x
            cuda.syncthreads()

    seen = set()
    for seed in range(4):
        order, count = np.zeros((2, 8), np.int64), np.zeros(2, np.int64)
        simulate(kernel, 1, 8, (order, count), seed=seed)
        seen |= {tuple(row) for row in order.tolist()}
    assert len(seen) > 4


@pytest.mark.parametrize("error", [RaceError, BarrierError, IndexError])
def test_the_same_seed_gives_the_same_error(error: type[Exception]) -> None:
    """The same seed reproduces a failure, with the same message."""

    def kernel(x: Array, count: Array) -> None:
        i = cuda.threadIdx.x
        place = cuda.atomic.add(count, 0, 1)
        if error is BarrierError and place == 5:
            return
        x[place // 2 if error is RaceError else place] = i
        cuda.syncthreads()

    threads = 9 if error is IndexError else 8
    messages = []
    for seed in (*range(6), *range(6)):
        with pytest.raises(error) as raised:
            simulate(kernel, 1, threads, (np.zeros(8), np.zeros(1, np.int64)), seed=seed)
        messages.append(str(raised.value))
    assert messages[:6] == messages[6:]


def test_a_run_leaves_nothing_behind() -> None:
    """After an error no thread is left waiting, and arguments are freed after each run."""

    def kernel(x: Array, limit: int) -> None:
        i = cuda.threadIdx.x
        cuda.syncthreads()
        if i >= limit:
            raise ValueError("over the limit", i)
        x[i] = 1

    for limit in (7, 8):
        x = np.zeros(8)
        with contextlib.suppress(ValueError):
            simulate(kernel, 1, 8, (x, limit))
        assert limit == 7 or x.all()
        reference = weakref.ref(x)
        del x
        gc.collect()
        assert reference() is None
    with pytest.raises(ValueError, match="over the limit") as error:
        simulate(kernel, 1, 8, (np.zeros(8), 7))
    assert ["kernel kernel, block (0, 0, 0), thread (7, 0, 0)"] == error.value.__notes__


@pytest.mark.parametrize(
    ("grid", "threads", "message"),
    [
        (0, 1, "grid is 0, but must be at least 1"),
        (1, (4, 0), "threads is .4, 0., but must be at least 1"),
        ((1, 1, 1, 1), 1, "grid is .*, but must have 1 to 3 dimensions"),
        (1, (), "threads is .., but must have 1 to 3 dimensions"),
        (1, (64, 32), "threads is .64, 32., but a block has at most 1024"),
    ],
)
def test_sizes_that_cuda_refuses_are_refused(grid: Any, threads: Any, message: str) -> None:  # noqa: ANN401  # of every type that may come
    """A launch has the bounds that CUDA has."""
    with pytest.raises(ValueError, match=message):
        simulate(lambda: None, grid, threads, ())


def twice(x: int) -> int:
    """Return twice the number, as a device function does."""
    return (x + np.int64(x)) * cuda.blockDim.x


def thrice(x: int) -> int:
    """Return three times the number, as a device function does."""
    return 3 * x * cuda.blockDim.x


def test_device_functions_are_rebound_however_they_are_reached() -> None:
    """Globals, closures, plain functions, and functions that call themselves are rebound."""
    through_closure = SimpleNamespace(py_func=twice)

    def countdown(x: int) -> int:
        return 0 if x == 0 else 1 + countdown(x - np.int64(1))

    def kernel(out: Array) -> None:
        out[0] = through_closure(1) + twice(2) + countdown(3) + sum(thrice(i) for i in range(2))

    out = np.zeros(1, np.int64)
    simulate(SimpleNamespace(py_func=kernel), 1, 1, (out,))
    assert [2 + 4 + 3 + 3] == out.tolist()
    assert cuda is None, "the originals are not touched"


TABLE = np.arange(3)


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (lambda: TABLE[0], NotImplementedError, "no constant arrays, but TABLE is one"),
        (lambda: 3, TypeError, "a kernel returns nothing, but this one returned 3"),
        *(
            (kernel, TypeError, "a kernel is a function or has a py_func")
            for kernel in (3, print, None, SimpleNamespace(py_func=7))
        ),
    ],
)
def test_what_is_no_kernel_is_refused(kernel: object, error: type[Exception], message: str) -> None:
    """A kernel is a function without constant arrays and results, or an object with one."""
    with pytest.raises(error, match=message):
        simulate(kernel, 1, 1, ())


def test_atomics_return_the_old_value_and_store_the_new_one() -> None:
    """Every atomic operation on one element does what numba documents."""

    def kernel(x: Array, old: Array) -> None:
        old[0] = cuda.atomic.add(x, 0, 5)
        old[1] = cuda.atomic.sub(x, 0, 3)
        old[2] = cuda.atomic.max(x, 0, 20)
        old[3] = cuda.atomic.min(x, 0, 13)
        old[4] = cuda.atomic.and_(x, 0, 0b110)
        old[5] = cuda.atomic.or_(x, 0, 0b011)
        old[6] = cuda.atomic.xor(x, 0, 0b101)
        old[7] = cuda.atomic.exch(x, 0, 9)
        old[8] = cuda.atomic.cas(x, 0, 9, 1)
        old[9] = cuda.atomic.cas(x, 0, 9, 2)
        old[10] = cuda.atomic.inc(x, 0, 2)
        old[11] = cuda.atomic.inc(x, 0, 2)
        old[12] = cuda.atomic.dec(x, 0, 4)
        old[13] = cuda.atomic.dec(x, 0, 2)
        old[14] = cuda.atomic.dec(x, 0, 2)
        old[15] = cuda.atomic.add(x, 0, 0)

    x, old = np.array([10]), np.zeros(16, np.int64)
    simulate(kernel, 1, 1, (x, old))
    assert [10, 15, 12, 20, 13, 4, 7, 2, 9, 1, 1, 2, 0, 4, 2, 1] == old.tolist()
    assert [1] == x.tolist()


def test_tensors_arrays_and_numbers_are_arguments() -> None:
    """Torch tensors, also strided, are written in place; scalars may be NumPy's and bools."""

    def kernel(x: Array, y: Array, factor: float, flag: bool, shift: int) -> None:
        i = cuda.grid(1)
        if flag:
            y[i] = int(x[i] * factor) + shift

    x = torch.arange(6, dtype=torch.int32)[::2]
    y = torch.zeros((3, 2), dtype=torch.int64)[:, 1]
    simulate(kernel, 3, 1, (x, y, 2.5, True, np.int16(1)))
    assert [1, 6, 11] == y.tolist()
    simulate(kernel, 3, 1, (x.numpy(), y, 2.5, np.bool_(False), 1))
    assert [1, 6, 11] == y.tolist()


INTS = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("signature", "args", "message"),
    [
        *(
            (None, (arg, 1), f"argument x: expected an array or a number, got {kind}")
            for arg, kind in ((None, "NoneType"), ("x", "str"), ([1], "list"), (1j, "complex"))
        ),
        (None, (1,), "takes 2 arguments (x, y), but got 1"),
        (None, (1, 2, 3), "takes 2 arguments (x, y), but got 3"),
        ("void(int32[::1], int64)", (INTS, 1), "argument x is int64 of shape (2,)"),
        ("void(int64[::1], int64)", (np.zeros(4, np.int64)[::2], 1), "argument x is int64 of"),
        ("void(int64[:], int32)", (INTS, 2**31), "argument y is 2147483648"),
        ("void(int64[:], int64)", (INTS, 1.5), "argument y is 1.5, but"),
        ("void(int64[:, ::1], int64)", (INTS, 1), "has int64[:, ::1]"),
        ("void(int64, int64)", (INTS, 1), "has int64"),
        ("void(int64[:], int64)", (3, 1), "argument x is 3, but"),
        ("void(int64[:])", (INTS, 1), "has 1 parameters, but got 2 arguments"),
        (["void(int8[:], int8)", "void(int64[:], bool_)"], (np.zeros(2), 1), "has int8[:]; arg"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    signature: object, args: tuple[object, ...], message: str
) -> None:
    """Wrong kinds and numbers of arguments, and those of another signature, are refused by name."""
    kernel = SimpleNamespace(py_func=lambda x, y: None, signature=signature)  # noqa: ARG005  # a kernel
    with pytest.raises(TypeError) as error:
        simulate(kernel, 1, 1, args)
    assert str(error.value).startswith("kernel <lambda>: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("signature", "args"),
    [
        ("void()", ()),
        ("void(int32[:, ::1], uint8, float64)", (np.zeros((2, 3), np.int32), 255, 1)),
        ("(int64[:, :], boolean, intp)", (np.zeros((4, 3), np.int64)[::2], True, -1)),
        (("void(int8[:])", "void(float32[::1])"), (np.zeros(3, np.float32),)),
        (None, (1,)),
        (object(), (np.zeros(3), 1)),
    ],
)
def test_arguments_that_fit_the_signature_are_taken(
    signature: object, args: tuple[object, ...]
) -> None:
    """Signatures of several kinds, one of several, and kernels without a textual one are fine."""
    functions = (lambda: None, lambda _: None, lambda _, __: None, lambda _, __, ___: None)
    simulate(SimpleNamespace(py_func=functions[len(args)], signature=signature), 1, 1, args)


def test_a_signature_with_an_unknown_type_is_refused() -> None:
    """The check of signatures names the type that it does not know."""
    kernel = SimpleNamespace(py_func=lambda _: None, signature="void(CPointer(int32))")
    with pytest.raises(NotImplementedError, match="does not support parameters of type CPointer"):
        simulate(kernel, 1, 1, (1,))


def test_importing_the_simulator_imports_neither_torch_nor_numba() -> None:
    """The package alone needs NumPy and greenlet only."""
    code = (
        "import sys, types\n"
        "package = types.ModuleType('conformance')\n"  # as without the rest of the harness
        "package.__path__ = ['conformance']\n"
        "sys.modules['conformance'] = package\n"
        "import conformance.simulator\n"
        "print(sorted({'torch', 'numba', 'fast', 'hypothesis'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # this Python
    assert "[]\n" == done.stdout
