"""The simulator's arrays: bounds, ranges, and memory that nobody wrote."""

import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import UninitializedReadError, simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place


@pytest.mark.parametrize("index", [-1, 4, 2**40])
def test_an_index_outside_an_array_is_refused_in_loads_stores_and_atomics(index: int) -> None:
    """Shows that neither a negative index nor one past the end reaches memory, and what is said."""

    def load(x: Array, i: int) -> None:
        _ = x[i]

    def store(x: Array, i: int) -> None:
        x[i] = 1

    def add(x: Array, i: int) -> None:
        cuda.atomic.add(x, i, 1)

    for kernel in (load, store, add):
        x = np.zeros(4, np.int64)
        where = f"kernel {kernel.__name__}, block (0, 0, 0), thread (0, 0, 0): "
        message = f"{where}x[{index}] is outside its shape (4,)"
        with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
            simulate(kernel, 1, 1, (x, index))
        assert [0, 0, 0, 0] == x.tolist()


def test_an_index_error_names_the_block_and_the_thread() -> None:
    """Shows that of many threads the one at fault is named, in three dimensions."""

    def kernel(x: Array) -> None:
        row = cuda.blockIdx.y
        x[row, cuda.threadIdx.x + row] = 1

    message = (
        "kernel kernel, block (0, 1, 0), thread (2, 0, 0): x[1, 3] is outside its shape (2, 3)"
    )
    for seed in range(4):
        with pytest.raises(IndexError, match=re.escape(message)):
            simulate(kernel, (1, 2), 3, (np.zeros((2, 4))[:, :3],), seed=seed)


@pytest.mark.parametrize(("row", "column"), [(-1, 0), (0, -1), (2, 0), (0, 3)])
def test_each_index_of_two_is_checked(row: int, column: int) -> None:
    """Shows that an index outside one dimension is refused even where it would hit the array."""

    def kernel(x: Array, i: int, j: int) -> None:
        x[i, j] = 1

    with pytest.raises(IndexError, match=rf"x\[{row}, {column}\] is outside its shape \(2, 3\)"):
        simulate(kernel, 1, 1, (np.zeros((2, 3), np.int32), row, column))


def test_arrays_of_any_strides_and_dimensions_are_read_and_written() -> None:
    """Shows that views are followed by their strides, and written in place."""

    def kernel(x: Array, y: Array, z: Array) -> None:
        i, j = cuda.grid(2)
        y[j, i] = x[i, j]
        if i == 0 and j == 0:
            z[()] = x.ndim * 1000 + x.size * 100 + len(x) * 10 + x.strides[1]

    x = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-2]
    y = np.zeros((3, 2), np.int16)
    z = np.array(0)
    simulate(kernel, (2, 3), 1, (x, y, z))
    assert np.array_equal(x.T, y)
    assert 2000 + 600 + 20 - 4 == z


@pytest.mark.parametrize("index", [(0,), 0, (0, 0, 0), slice(None)])
def test_rows_and_slices_are_refused(index: object) -> None:
    """Shows that an index that is not one integer for each dimension gets a clear error."""

    def kernel(x: Array) -> None:
        _ = x[index]

    with pytest.raises(IndexError, match=r"shape \(2, 3\) needs 2"):
        simulate(kernel, 1, 1, (np.zeros((2, 3)),))


@pytest.mark.parametrize("index", [True, 1.0, None])
def test_an_index_that_is_no_integer_is_refused(index: object) -> None:
    """Shows that a bool or a float is not an index."""

    def kernel(x: Array) -> None:
        x[index] = 1

    with pytest.raises(TypeError, match="an index must be an integer"):
        simulate(kernel, 1, 1, (np.zeros(3),))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", 128),
        ("int32", -(2**31) - 1),
        ("int64", 2**63),
        ("uint8", -1),
        ("uint32", 2**32),
        ("bool", 2),
        ("float16", 1e5),
        ("float32", -1e39),
    ],
)
def test_a_value_outside_the_range_of_a_dtype_is_refused(dtype: str, value: float) -> None:
    """Shows that no store wraps, truncates or becomes infinite."""

    def kernel(x: Array) -> None:
        x[1] = value

    def atomic(x: Array) -> None:
        cuda.atomic.exch(x, 1, value)

    for each in (kernel, atomic):
        x = np.zeros(2, dtype)
        with pytest.raises(OverflowError, match=re.escape(f"x[1] = {value} does not fit {dtype}")):
            simulate(each, 1, 1, (x,))
        assert [0, 0] == x.tolist()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [-128, 127]),
        ("uint64", [0, 2**64 - 1]),
        ("int64", [-(2**63), 2**63 - 1]),
        ("bool", [False, True]),
        ("float32", [float("inf"), 0.5]),
        ("float64", [-1e300, 3]),
    ],
)
def test_values_at_the_ends_of_a_range_are_stored_and_read_back(
    dtype: str, values: list[float]
) -> None:
    """Shows that the ends of each type's range belong to it."""

    def kernel(x: Array, y: Array) -> None:
        for i in range(2):
            x[i] = values[i]
            y[i] = x[i]

    x, y = np.zeros(2, dtype), np.zeros(2, dtype)
    simulate(kernel, 1, 1, (x, y))
    assert values == x.tolist() == y.tolist()


def test_a_product_past_32_bits_is_refused_only_where_it_does_not_fit() -> None:
    """Shows that int32 times int32 does not wrap, as it does not in compiled kernels."""

    def kernel(x: Array, y: Array) -> None:
        y[0] = x[0] * x[0]

    x = np.array([2**20], np.int32)
    wide = np.zeros(1, np.int64)
    simulate(kernel, 1, 1, (x, wide))
    assert 2**40 == wide[0]
    with pytest.raises(OverflowError, match="does not fit int32"):
        simulate(kernel, 1, 1, (x, np.zeros(1, np.int32)))


@pytest.mark.parametrize("value", [1.0, None, "1"])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    """Shows that a float does not lose its fraction in an array of integers."""

    def kernel(x: Array) -> None:
        x[0] = value

    message = rf"x\[0\] = {value!r}: a {type(value).__name__} in an array of int64; cast it first"
    with pytest.raises(TypeError, match=message):
        simulate(kernel, 1, 1, (np.zeros(1, np.int64),))


def test_a_read_only_array_stays_as_it_is() -> None:
    """Shows that a store to a read-only array is refused."""

    def kernel(x: Array) -> None:
        x[0] = x[1]

    x = np.arange(2)
    x.flags.writeable = False
    with pytest.raises(ValueError, match=r"x\[0\] is stored, but the array is read-only"):
        simulate(kernel, 1, 1, (x,))
    assert [0, 1] == x.tolist()


def test_shared_memory_must_be_written_before_it_is_read() -> None:
    """Shows that an element of shared memory that no thread has stored is refused."""

    def kernel(out: Array) -> None:
        shared = cuda.shared.array((4,), np.int32)
        i = cuda.threadIdx.x
        if i < 3:
            shared[i] = i
        cuda.syncthreads()
        out[i] = shared[i]

    with pytest.raises(
        UninitializedReadError, match=r"shared array \(.*\)\[3\] is read, but never"
    ):
        simulate(kernel, 1, 4, (np.zeros(4),))


def test_shared_memory_is_blank_again_in_the_next_block() -> None:
    """Shows that no block finds what another has left."""

    def kernel(out: Array) -> None:
        shared = cuda.shared.array(1, np.int32)
        if cuda.blockIdx.x == 1:
            shared[0] = 1
        out[cuda.blockIdx.x] = shared[0]

    for seed in range(4):
        with pytest.raises(UninitializedReadError):
            simulate(kernel, 2, 1, (np.zeros(2),), seed=seed)


def test_local_memory_must_be_written_before_it_is_read() -> None:
    """Shows that an element of local memory is each thread's own, and blank."""

    def kernel(out: Array) -> None:
        local = cuda.local.array((2, 2), np.float32)
        i = cuda.threadIdx.x
        local[i, 0] = 0.5
        out[i] = local[0, 0]

    message = r"thread \(1, 0, 0\): local array \(.*\)\[0, 0\] is read, but never written"
    with pytest.raises(UninitializedReadError, match=message):
        simulate(kernel, 1, 2, (np.zeros(2),))


def test_an_atomic_reads_and_so_needs_memory_that_was_written() -> None:
    """Shows that a counter in shared memory must be cleared first."""

    def kernel() -> None:
        shared = cuda.shared.array(1, np.int32)
        cuda.atomic.add(shared, 0, 1)

    with pytest.raises(UninitializedReadError):
        simulate(kernel, 1, 1, ())


def test_shared_arrays_are_distinguished_by_their_calls() -> None:
    """Shows that two arrays of one line are two, and that a call in a loop is one array."""

    def kernel(out: Array) -> None:
        a, b = cuda.shared.array(1, np.int64), cuda.shared.array(1, np.int64)
        a[0], b[0] = 10, 20
        for i in range(2):
            c = cuda.shared.array(1, np.int64)
            if i == 0:
                c[0] = 30
        out[0] = a[0] + b[0] + c[0]

    out = np.zeros(1, np.int64)
    simulate(kernel, 1, 1, (out,))
    assert [60] == out.tolist()


def test_dynamic_shared_memory_and_unknown_dtypes_are_refused() -> None:
    """Shows that what the simulator lacks is said, not guessed."""

    def dynamic() -> None:
        cuda.shared.array(0, np.int32)

    def complex_numbers() -> None:
        cuda.local.array(1, np.complex64)

    with pytest.raises(NotImplementedError, match="no dynamic shared memory"):
        simulate(dynamic, 1, 1, ())
    with pytest.raises(NotImplementedError, match=r"the simulator has no np\.complex64"):
        simulate(complex_numbers, 1, 1, ())
    with pytest.raises(NotImplementedError, match="the simulator has no type complex128"):
        simulate(lambda _: None, 1, 1, (np.zeros(1, np.complex128),))
