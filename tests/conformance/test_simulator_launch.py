"""The simulator's launches: indices, orders, arguments, and what a kernel's names are bound to."""

import contextlib
import gc
import random
import weakref
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

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


def test_the_seed_alone_decides_the_order() -> None:
    orders = [order_of(seed, 3, 4) for seed in range(12)]
    random.seed(2)
    assert orders[7] == order_of(7, 3, 4)
    assert all(sorted([*range(12)] * 2) == sorted(order) for order in orders)
    first_blocks = {order[0] // 4 for order in orders}
    first_threads = {order[0] % 4 for order in orders}
    assert ({0, 1, 2}, {0, 1, 2, 3}) == (first_blocks, first_threads)
    assert any(order[0] != order[1] for order in orders), "no thread was overtaken"


def test_the_order_changes_after_a_barrier() -> None:
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


def twice(x: int) -> int:
    """Return twice the number, as a device function does."""
    return (x + np.int64(x)) * cuda.blockDim.x


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
    kernel = SimpleNamespace(py_func=lambda x, y: None, signature=signature)  # noqa: ARG005  # a kernel
    with pytest.raises(TypeError) as error:
        simulate(kernel, 1, 1, args)
    assert str(error.value).startswith("kernel <lambda>: ")
    assert message in str(error.value)
