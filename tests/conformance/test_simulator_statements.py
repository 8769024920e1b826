"""The simulator's arrays, numbers and names: what one statement of a kernel computes or raises."""

import re
from typing import Any

import numpy as np
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
    x, y = np.zeros(4, np.int64), np.zeros((2, 3), np.int32)
    with pytest.raises(error, match=f"^{re.escape(WHERE)}.*{re.escape(message)}"):
        run(statement, x, y)
    assert not x.any()
    assert not y.any()


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
    x = np.zeros(2, dtype)
    with pytest.raises(OverflowError, match=re.escape(f"x[1] = {value} does not fit {dtype}")):
        run(store.format(value), x)
    assert [0, 0] == x.tolist()


def test_a_read_only_array_is_not_stored_to() -> None:
    x = np.arange(2)
    x.flags.writeable = False
    with pytest.raises(ValueError, match=r"x\[0\] is stored, but the array is read-only"):
        run("x[0] = x[1]", x)
    assert [0, 1] == x.tolist()
