"""The simulator's launches: indices, orders, arguments, and what a kernel's names come to mean."""

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

from conformance.simulator import BarrierError, RaceError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


def append_self(order: Array, count: Array) -> None:
    """Note down the running thread twice, with others in between."""
    for _ in range(2):
        place = cuda.atomic.add(count, 0, 1)
        order[place] = cuda.grid(1)


def order_of(seed: int, blocks: int, threads: int) -> list[int]:
    """Return the order in which the threads came, each twice."""
    order, count = np.full(2 * blocks * threads, -1), np.zeros(1, np.int64)
    simulate(append_self, blocks, threads, (order, count), seed=seed)
    return order.tolist()


def test_a_run_keeps_nothing_alive() -> None:
    """Shows that arguments are free again after a run, whether it failed or not."""

    def kernel(x: Array, limit: int) -> None:
        cuda.syncthreads()
        x[cuda.threadIdx.x % limit] += 1

    for limit in (4, 3):  # the second one races
        x = np.zeros(4)
        with contextlib.suppress(RaceError):
            simulate(kernel, 1, 4, (x, limit))
        reference = weakref.ref(x)
        del x
        gc.collect()
        assert reference() is None


def test_every_thread_runs_once_and_knows_where_it_is() -> None:
    """Shows indices, sizes, grid and lanes in three dimensions."""

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


def test_the_same_seed_gives_the_same_run() -> None:
    """Shows that every order is the seed's, and nobody else's."""
    random.seed(1)
    first = order_of(7, 3, 8)
    random.seed(2)
    assert first == order_of(7, 3, 8)


def test_seeds_shuffle_blocks_and_threads_and_let_threads_overtake_each_other() -> None:
    """Shows that blocks and threads come in many orders, again after every synchronisation."""
    orders = [order_of(seed, 3, 4) for seed in range(12)]
    assert all(sorted([*range(12)] * 2) == sorted(order) for order in orders)
    first_blocks = {order[0] // 4 for order in orders}
    first_threads = {order[0] % 4 for order in orders}
    assert ({0, 1, 2}, {0, 1, 2, 3}) == (first_blocks, first_threads)
    assert any(order[0] != order[1] for order in orders), "nobody was overtaken between atomics"


def test_the_order_changes_after_a_barrier() -> None:
    """Shows that the threads come in another order in the next interval."""

    def kernel(order: Array, count: Array) -> None:
        for turn in range(2):
            place = cuda.atomic.add(count, turn, 1)
            order[turn, place] = cuda.threadIdx.x
            cuda.syncthreads()

    seen = set()
    for seed in range(4):
        order, count = np.zeros((2, 8), np.int64), np.zeros(2, np.int64)
        simulate(kernel, 1, 8, (order, count), seed=seed)
        seen |= {tuple(row) for row in order.tolist()}
    assert len(seen) > 4


@pytest.mark.parametrize("error", [RaceError, BarrierError, IndexError])
def test_the_same_seed_gives_the_same_error(error: type[Exception]) -> None:
    """Shows that a failure can be run again, message and all."""

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


def test_a_run_after_a_failed_one_is_not_disturbed() -> None:
    """Shows that threads left waiting by an error are gone, and took nothing along."""

    def kernel(x: Array, limit: int) -> None:
        i = cuda.threadIdx.x
        cuda.syncthreads()
        if i >= limit:
            raise ValueError("over the limit", i)
        x[i] = 1

    x = np.zeros(8)
    with pytest.raises(ValueError, match="over the limit") as error:
        simulate(kernel, 1, 8, (x, 7))
    assert ["kernel kernel, block (0, 0, 0), thread (7, 0, 0)"] == error.value.__notes__
    x[:] = 0
    simulate(kernel, 1, 8, (x, 8))
    assert [1] * 8 == x.tolist()


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
    """Shows the bounds on a launch."""
    with pytest.raises(ValueError, match=message):
        simulate(append_self, grid, threads, (np.zeros(1), np.zeros(1)))


def twice(x: int) -> int:
    """Return twice the number, as a device function does."""
    return (x + np.int64(x)) * cuda.blockDim.x


def thrice(x: int) -> int:
    """Return three times the number, as a device function does."""
    return 3 * x * cuda.blockDim.x


def test_device_functions_are_rebound_however_they_are_reached() -> None:
    """Shows globals, closures, plain functions, and functions that call themselves."""
    through_closure = SimpleNamespace(py_func=twice)

    def countdown(x: int) -> int:
        return 0 if x == 0 else 1 + countdown(x - np.int64(1))

    def kernel(out: Array) -> None:
        out[0] = through_closure(1) + twice(2) + countdown(3) + sum(thrice(i) for i in range(2))

    out = np.zeros(1, np.int64)
    simulate(SimpleNamespace(py_func=kernel), 1, 1, (out,))
    assert [2 + 4 + 3 + 3] == out.tolist()
    assert cuda is None, "the originals are not touched"


def test_what_cuda_lacks_here_is_refused_by_name() -> None:
    """Shows that an unsupported name is named, at each level of the namespace."""
    for path, kernel in {
        "activemask": lambda: cuda.activemask,
        "atomic.nanmax": lambda: cuda.atomic.nanmax(0, 0, 0),
        "shared.thing": lambda: cuda.shared.thing,
        "local.thing": lambda: cuda.local.thing,
    }.items():
        with pytest.raises(NotImplementedError, match=rf"the simulator has no cuda\.{path}$"):
            simulate(kernel, 1, 1, ())


def test_constant_arrays_and_returned_values_are_refused() -> None:
    """Shows that a global array, and a kernel that returns something, get a clear error."""
    table = np.arange(3)

    def constant() -> None:
        _ = table[0]

    with pytest.raises(NotImplementedError, match="no constant arrays, but table is one"):
        simulate(constant, 1, 1, ())
    with pytest.raises(TypeError, match="a kernel returns nothing, but this one returned 3"):
        simulate(lambda: 3, 1, 1, ())


@pytest.mark.parametrize("kernel", [3, print, None, SimpleNamespace(py_func=7)])
def test_what_is_no_kernel_is_refused(kernel: object) -> None:
    """Shows that only functions and what holds one are taken."""
    with pytest.raises(TypeError, match="a kernel is a function or has a py_func"):
        simulate(kernel, 1, 1, ())


def test_atomics_return_the_old_value_and_store_the_new_one() -> None:
    """Shows every atomic operation on one element."""

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


def test_the_small_operations_do_what_numba_says() -> None:
    """Shows selections, hints of loads and stores, and a pause."""

    def kernel(x: Array) -> None:
        cuda.stcs(x, 0, cuda.selp(True, 3, 4))
        cuda.nanosleep(10)
        cuda.stwt(x, 1, cuda.ldcg(x, 0) + cuda.ldlu(x, 0))

    x = np.zeros(2)
    simulate(kernel, 1, 1, (x,))
    assert [3, 6] == x.tolist()


def test_importing_the_simulator_imports_neither_torch_nor_numba() -> None:
    """Shows that the package alone needs NumPy and greenlet only."""
    code = (
        "import sys, types, pathlib\n"
        "package = types.ModuleType('conformance')\n"  # as without the harness next to it
        "package.__path__ = ['conformance']\n"
        "sys.modules['conformance'] = package\n"
        "import conformance.simulator\n"
        "print(sorted({'torch', 'numba', 'fast', 'hypothesis'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # this Python
    assert "[]\n" == done.stdout
