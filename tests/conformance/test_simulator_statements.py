"""The simulator's arrays, numbers and names: what one statement of a kernel computes or raises."""

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conformance.simulator import UninitializedReadError, simulate

PAD = np.int64(-1)
COUNT = np.uint32(3)
WHERE = "kernel kernel, block (0, 0, 0), thread (0, 0, 0): "


def run(statement: str, *args: object) -> None:
    """Simulate a kernel of one statement, whose parameters are `x` and `y`."""
    names: dict[str, Any] = {"np": np, "cuda": None, "PAD": PAD, "COUNT": COUNT}
    parameters = ", ".join("xy"[: len(args)])
    exec(f"def kernel({parameters}): {statement}", names)  # noqa: S102  # our own
    simulate(names["kernel"], 1, 1, args)


REFUSED: list[tuple[str, type[Exception], str]] = [
    # Indices.
    *(
        (access.format(index), IndexError, f"x[{index}] is outside its shape (4,)")
        for index in (-1, 4, 2**40)
        for access in ("x[{}]", "x[{}] = 1", "cuda.atomic.add(x, {}, 1)")
    ),
    *(
        (f"y[{index}] = 1", IndexError, f"y[{index}] is outside its shape (2, 3)")
        for index in ("-1, 0", "0, -1", "2, 0", "0, 3")
    ),
    *((f"y[{index}]", IndexError, "shape (2, 3) needs 2") for index in ("0", "0,", "0, 0, 0", ":")),
    *((f"x[{index}] = 1", TypeError, "an index must be an integer") for index in (True, 1.0, None)),
    # Values of another type.
    ("x[0] = 1.0", TypeError, "x[0] = 1.0: a float in an array of int64; cast it first"),
    ("x[0] = None", TypeError, "x[0] = None: a NoneType in an array of int64; cast it first"),
    ("x[0] = '1'", TypeError, "x[0] = '1': a str in an array of int64; cast it first"),
    # Casts outside the range.
    ("np.uint32(-1)", OverflowError, "uint32(-1) is outside 0..4294967295"),
    ("np.uint32(2**32)", OverflowError, "uint32(4294967296) is outside 0..4294967295"),
    ("np.int32(2**31)", OverflowError, "int32(2147483648) is outside -2147483648..2147483647"),
    ("np.int64(2**63)", OverflowError, f"int64({2**63}) is outside {-(2**63)}..{2**63 - 1}"),
    ("np.int8(-128.0 - 1)", OverflowError, "int8(-129.0) is outside -128..127"),
    ("np.float32(1e39)", OverflowError, "float32(1e+39) is outside"),
    # Unsigned arithmetic, which wraps around in compiled kernels.
    (
        "np.uint8(3) - np.uint8(5)",
        OverflowError,
        "3 - 5 of two unsigned integers is -2, which wraps around",
    ),
    (
        "np.uint64(5) * np.uint64(2**63)",
        OverflowError,
        f"5 * {2**63} of two unsigned integers is {5 * 2**63}, which wraps around",
    ),
    ("-np.uint32(5)", OverflowError, "-5 of an unsigned integer wraps around"),
    ("COUNT - COUNT * COUNT", OverflowError, "3 - 9 of two unsigned integers"),
    # What is undefined on a GPU.
    ("1 // x[0]", ZeroDivisionError, ""),
    ("cuda.popc(-1)", ValueError, "popc(-1) depends on the number of bits"),
    ("cuda.atomic.add(cuda.shared.array(1, np.int32), 0, 1)", UninitializedReadError, "shared arr"),
    # What the simulator lacks.
    *(
        (name, NotImplementedError, f"the simulator has no {name}")
        for name in ("np.cumsum", "cuda.activemask", "cuda.shared.thing", "cuda.local.thing")
    ),
    ("cuda.atomic.nanmax(x, 0, 0)", NotImplementedError, "the simulator has no cuda.atomic.nanmax"),
    ("cuda.shared.array(0, np.int32)", NotImplementedError, "no dynamic shared memory"),
    ("cuda.local.array(1, np.complex64)", NotImplementedError, "the simulator has no np.complex64"),
]


@pytest.mark.parametrize(("statement", "error", "message"), REFUSED)
def test_a_statement_is_refused(statement: str, error: type[Exception], message: str) -> None:
    """The message names the kernel, block and thread, and no memory is written."""
    x, y = np.zeros(4, np.int64), np.zeros((2, 3), np.int32)
    with pytest.raises(error, match=f"^{re.escape(WHERE)}.*{re.escape(message)}"):
        run(statement, x, y)
    assert not x.any()
    assert not y.any()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("np.uint32(2**32 - 1)", 2**32 - 1),
        ("np.int64(-(2**62))", -(2**62)),
        ("np.int32(-3.9)", -3),
        ("np.bool_(17) + np.int8(True)", 2),
        ("np.intp(np.uint64(2**63 - 1))", 2**63 - 1),
        ("np.float32(0.1)", float(np.float32(0.1))),
        ("np.float64(0.1) + np.float32(np.inf)", math.inf),
        ("np.pi", math.pi),
        ("np.uint32(13) + np.uint32(5)", 18),
        ("np.uint32(13) - np.uint32(5)", 8),
        ("np.uint32(13) * np.uint32(5)", 65),
        ("np.uint32(13) // np.uint32(5)", 2),
        ("np.uint32(13) % np.uint32(5)", 3),
        ("np.uint32(13) << np.uint32(5)", 416),
        ("np.uint32(13) >> np.uint32(2)", 3),
        ("np.uint32(13) & np.uint32(5)", 5),
        ("np.uint32(13) | np.uint32(5)", 13),
        ("np.uint32(13) ^ np.uint32(5)", 8),
        ("~np.uint32(5) == 2**64 - 6", True),
        ("-np.uint32(0)", 0),
        ("np.uint32(5) - np.int64(13)", -8),  # a signed operand makes a signed result
        ("2 - np.uint32(5)", -3),
        ("PAD * 2**40", -(2**40)),  # globals neither wrap nor warn
        ("y * y", 2**40),  # nor do arguments
        ("cuda.selp(True, 3, 4)", 3),
        ("cuda.popc(0) + cuda.ffs(0)", 0),
        ("cuda.popc(0b10100)", 2),
        ("cuda.ffs(0b10100)", 3),
        ("cuda.popc(2**63)", 1),
        ("cuda.ffs(2**63)", 64),
    ],
)
def test_an_expression_is_computed(expression: str, expected: float) -> None:
    """Casts, unsigned arithmetic and small operations give what a compiled kernel computes."""
    x = np.zeros(1, np.float64 if isinstance(expected, float) else np.int64)
    run(f"x[0] = {expression}", x, np.int32(2**20))
    assert [expected] == x.tolist()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", 128),
        ("int32", -(2**31) - 1),
        ("int32", 2**40),
        ("int64", 2**63),
        ("uint8", -1),
        ("uint32", 2**32),
        ("bool", 2),
        ("float16", 1e5),
        ("float32", -1e39),
    ],
)
@pytest.mark.parametrize("store", ["x[1] = {}", "cuda.atomic.exch(x, 1, {})"])
def test_a_value_outside_the_range_of_a_dtype_is_refused(
    store: str, dtype: str, value: float
) -> None:
    """No store wraps, truncates or becomes infinite."""
    x = np.zeros(2, dtype)
    with pytest.raises(OverflowError, match=re.escape(f"x[1] = {value} does not fit {dtype}")):
        run(store.format(value), x)
    assert [0, 0] == x.tolist()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [-128, 127]),
        ("uint64", [0, 2**64 - 1]),
        ("int64", [-(2**63), 2**63 - 1]),
        ("bool", [False, True]),
        ("float32", [math.inf, 0.5]),
        ("float64", [-1e300, 3]),
    ],
)
def test_values_at_the_ends_of_a_range_are_stored_and_read_back(
    dtype: str, values: list[float]
) -> None:
    """The ends of each type's range belong to it."""
    low, high = (str(value).replace("inf", "np.inf") for value in values)
    x, y = np.zeros(2, dtype), np.zeros(2, dtype)
    run(f"x[0] = {low}; x[1] = {high}; y[0] = x[0]; y[1] = x[1]", x, y)
    assert values == x.tolist() == y.tolist()


def test_elements_of_unsigned_arrays_are_unsigned() -> None:
    """The difference of two elements of an unsigned array may not be negative."""
    with pytest.raises(OverflowError, match="3 - 5 of two unsigned integers is -2, which wraps"):
        run("x[0] - x[1]", np.array([3, 5], np.uint8))


def test_a_read_only_array_is_not_stored_to() -> None:
    """A store to a read-only array is refused, and the array stays as it is."""
    x = np.arange(2)
    x.flags.writeable = False
    with pytest.raises(ValueError, match=r"x\[0\] is stored, but the array is read-only"):
        run("x[0] = x[1]", x)
    assert [0, 1] == x.tolist()


def test_an_array_of_an_unknown_dtype_is_refused() -> None:
    """An array with a dtype that kernels do not support is refused by the dtype's name."""
    with pytest.raises(NotImplementedError, match="the simulator has no type complex128"):
        run("pass", np.zeros(1, np.complex128))


def test_loads_and_stores_with_cache_hints_are_plain_ones() -> None:
    """The hints have no effect, and neither has a pause."""
    x = np.zeros(2)
    run("cuda.stcs(x, 0, 3); cuda.nanosleep(9); cuda.stwt(x, 1, cuda.ldcg(x, 0) + x[0])", x)
    assert [3, 6] == x.tolist()


def test_arrays_of_any_strides_and_dimensions_are_read_and_written() -> None:
    """Views are followed by their strides, and written in place."""
    x = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-2]
    y = np.zeros((3, 2), np.int16)
    run("y[0, 0] = x[0, 0]; y[1, 0] = x[0, 1]; y[2, 0] = x[0, 2]", x, y)
    run("y[0, 1] = x[1, 0]; y[1, 1] = x[1, 1]; y[2, 1] = x[1, 2]", x, y)
    assert np.array_equal(x.T, y)
    facts = np.zeros((), np.int64)
    run("x[()] = y.ndim * 1000 + y.size * 100 + len(y) * 10 + y.strides[1]", facts, x)
    assert 2000 + 600 + 20 - 4 == facts


def test_numba_types_are_casts_and_dtypes() -> None:
    """A kernel may use numba's types in place of NumPy's."""
    numba = pytest.importorskip("numba", reason="numba is not installed")
    int32, boolean, cuda = numba.int32, numba.boolean, None

    def kernel(out: npt.NDArray[Any], value: int) -> None:
        local = cuda.local.array(1, int32)  # type: ignore[attr-defined]  # the simulator's
        local[0] = int32(value)
        out[0] = local[0] + boolean(7)

    out = np.zeros(1, np.int64)
    simulate(kernel, 1, 1, (out, 5))
    assert [6] == out.tolist()
    with pytest.raises(OverflowError, match=r"int32\(2147483648\) is outside"):
        simulate(kernel, 1, 1, (out, 2**31))
