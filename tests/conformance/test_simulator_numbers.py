"""The simulator's numbers: casts that do not wrap, unsigned arithmetic, NumPy as kernels see it."""

import math
import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import simulate

Array: TypeAlias = npt.NDArray[Any]

cuda: Any = None  # the simulator puts its own in place

PAD = np.int64(-1)
COUNT = np.uint32(3)


@pytest.mark.parametrize(
    ("name", "value", "low", "high"),
    [
        ("uint32", -1, 0, 2**32 - 1),
        ("uint32", 2**32, 0, 2**32 - 1),
        ("int32", 2**31, -(2**31), 2**31 - 1),
        ("int64", 2**63, -(2**63), 2**63 - 1),
        ("int8", -128.0 - 1, -128, 127),
    ],
)
def test_a_cast_outside_the_range_is_refused(name: str, value: float, low: int, high: int) -> None:
    """Shows that a cast raises where a compiled kernel's would wrap, and what it says."""

    def kernel(x: Array) -> None:
        x[0] = getattr(np, name)(value)

    message = f"{name}({value}) is outside {low}..{high}"
    with pytest.raises(OverflowError, match=re.escape(message)):
        simulate(kernel, 1, 1, (np.zeros(1, np.float64),))


def test_casts_within_the_range_keep_the_value() -> None:
    """Shows casts of integers, floats and bools."""

    def kernel(out: Array) -> None:
        out[0] = np.uint32(2**32 - 1)
        out[1] = np.int64(-(2**62))
        out[2] = np.int32(-3.9)
        out[3] = np.bool_(17) + np.int8(True)
        out[4] = np.intp(np.uint64(2**63 - 1))

    out = np.zeros(5, np.int64)
    simulate(kernel, 1, 1, (out,))
    assert [2**32 - 1, -(2**62), -3, 2, 2**63 - 1] == out.tolist()


def test_floats_are_rounded_by_their_casts() -> None:
    """Shows that float32 has 24 bits, that nothing overflows silently, and the constants."""

    def kernel(out: Array, big: float) -> None:
        out[0] = np.float32(0.1)
        out[1] = np.float64(0.1) + np.float32(np.inf)
        out[2] = np.pi
        out[3] = np.float32(big)

    out = np.zeros(4)
    simulate(kernel, 1, 1, (out, 3.0))
    assert [float(np.float32(0.1)), math.inf, math.pi, 3.0] == out.tolist()
    with pytest.raises(OverflowError, match=r"float32\(1e\+39\) is outside"):
        simulate(kernel, 1, 1, (out, 1e39))


def test_unsigned_arithmetic_that_wraps_is_refused() -> None:
    """Shows that of two unsigned numbers the difference is unsigned, as in compiled kernels."""

    def difference(x: Array, y: Array) -> None:
        y[0] = x[0] - x[1]

    def product(x: Array, y: Array) -> None:
        y[0] = np.uint64(x[1]) * np.uint64(2**63)

    def negation(x: Array, y: Array) -> None:
        y[0] = -np.uint32(x[1])

    x = np.array([3, 5], np.uint8)
    for kernel, message in (
        (difference, "3 - 5 of two unsigned integers is -2, which wraps around"),
        (product, f"5 * {2**63} of two unsigned integers is {5 * 2**63}, which wraps around"),
        (negation, "-5 of an unsigned integer wraps around"),
    ):
        where = f"kernel {kernel.__name__}, block (0, 0, 0), thread (0, 0, 0): "
        with pytest.raises(OverflowError, match=f"^{re.escape(where + message)}$"):
            simulate(kernel, 1, 1, (x, np.zeros(1, np.int64)))


def test_unsigned_arithmetic_within_64_bits_is_exact() -> None:
    """Shows every operation on unsigned numbers, and that signed operands make signed results."""

    def kernel(out: Array) -> None:
        a, b = np.uint32(13), np.uint32(5)
        out[0] = a + b
        out[1] = a - b
        out[2] = a * b
        out[3] = a // b
        out[4] = a % b
        out[5] = a << b
        out[6] = a >> b
        out[7] = a & b
        out[8] = a | b
        out[9] = a ^ b
        out[10] = b - np.int64(a)
        out[11] = 2 - b
        out[12] = ~b == 2**64 - 6
        out[13] = -np.uint32(0)

    out = np.zeros(14, np.int64)
    simulate(kernel, 1, 1, (out,))
    assert [18, 8, 65, 2, 3, 416, 0, 5, 13, 8, -8, -3, 1, 0] == out.tolist()


def test_global_numpy_numbers_and_types_become_the_simulators() -> None:
    """Shows that NumPy's scalars among a kernel's globals and arguments neither wrap nor warn."""
    small = np.int8

    def kernel(out: Array, last: int) -> None:
        out[0] = PAD * 2**40
        out[1] = last * last
        out[2] = small(100) + small(100)

    out = np.zeros(3, np.int64)
    simulate(kernel, 1, 1, (out, np.int32(2**20)))
    assert [-(2**40), 2**40, 200] == out.tolist()

    def wrapping(out: Array) -> None:
        out[0] = COUNT - COUNT * COUNT

    with pytest.raises(OverflowError, match="3 - 9 of two unsigned integers"):
        simulate(wrapping, 1, 1, (out,))


def test_numba_types_are_casts_and_dtypes() -> None:
    """Shows that a kernel may say int32 in numba's words."""
    numba = pytest.importorskip("numba", reason="numba is not installed")
    int32, boolean = numba.int32, numba.boolean

    def kernel(out: Array, value: int) -> None:
        local = cuda.local.array(1, int32)
        local[0] = int32(value)
        out[0] = local[0] + boolean(7)

    out = np.zeros(1, np.int64)
    simulate(kernel, 1, 1, (out, 5))
    assert [6] == out.tolist()
    with pytest.raises(OverflowError, match=r"int32\(2147483648\) is outside"):
        simulate(kernel, 1, 1, (out, 2**31))


@pytest.mark.parametrize("name", ["cumsum", "zeros", "minimum"])
def test_the_rest_of_numpy_is_refused_by_name(name: str) -> None:
    """Shows that a NumPy function in a kernel gets a clear error."""

    def kernel() -> None:
        getattr(np, name)

    with pytest.raises(NotImplementedError, match=rf"the simulator has no np\.{name}$"):
        simulate(kernel, 1, 1, ())


def test_division_by_zero_raises() -> None:
    """Shows that what is undefined on a GPU is an error here, and says where."""

    def kernel(x: Array) -> None:
        x[0] = 1 // x[0]

    with pytest.raises(ZeroDivisionError, match=r"^kernel kernel, block \(0, 0, 0\), thread"):
        simulate(kernel, 1, 1, (np.zeros(1, np.int64),))
