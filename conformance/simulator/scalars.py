"""The numbers of a simulated kernel: Python's, limited to the ranges of the types of the GPU.

Python integers never wrap, so a value outside the range of a type is detected when it is cast or
stored. In compiled kernels all integer arithmetic has 64 bits, and is unsigned if both operands
are: `np.uint32(3) - np.uint32(5)` becomes 2**64 - 2. Python would hide that, so here it raises. Two
differences remain: signed results past 64 bits are detected only when they are cast or stored, and
intermediate floats have 64 bits.
"""

import math
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

import numpy as np

Number: TypeAlias = int | float  # and bool, which is an int

_UNSIGNED_LIMIT: Final = 2**64


def _unsigned(operation: Callable[[int, int], int], sign: str) -> Callable[[int, int], int]:
    """Return int's operation, but raise if the result of two unsigned operands wraps around."""

    def operate(left: int, right: int) -> int:
        result = operation(left, right)
        if type(right) is not Unsigned:
            return result  # a signed operand, of 64 bits, makes the result signed
        if 0 <= result < _UNSIGNED_LIMIT:
            return Unsigned(result)
        raise OverflowError(
            f"{left} {sign} {right} of two unsigned integers is {result}, which wraps around"
        )

    return operate


class Unsigned(int):
    """An unsigned integer: a cast to uint32, an element of a uint8 array.

    Example:
        >>> Unsigned(5) - Unsigned(3)
        2
        >>> Unsigned(3) - Unsigned(5)
        Traceback (most recent call last):
        OverflowError: 3 - 5 of two unsigned integers is -2, which wraps around
    """

    __slots__ = ()

    __add__ = _unsigned(int.__add__, "+")
    __sub__ = _unsigned(int.__sub__, "-")
    __mul__ = _unsigned(int.__mul__, "*")
    __floordiv__ = _unsigned(int.__floordiv__, "//")
    __mod__ = _unsigned(int.__mod__, "%")
    __lshift__ = _unsigned(int.__lshift__, "<<")
    __rshift__ = _unsigned(int.__rshift__, ">>")
    __and__ = _unsigned(int.__and__, "&")
    __or__ = _unsigned(int.__or__, "|")
    __xor__ = _unsigned(int.__xor__, "^")

    def __neg__(self) -> int:
        if self:
            raise OverflowError(f"-{self} of an unsigned integer wraps around")
        return self

    def __invert__(self) -> int:
        return Unsigned(_UNSIGNED_LIMIT - 1 - self)


class Cast:
    """A number type as kernels use it: called on a value, or given as the dtype of an array.

    Attributes:
        name: As NumPy spells it, `uint32`.
        dtype: NumPy's.
        kind: "b" boolean, "i" signed, "u" unsigned, "f" floating point.
        low: The least finite value.
        high: The greatest finite value.

    Example:
        >>> CASTS["int64"](3.7)
        3
        >>> CASTS["uint32"](-1)
        Traceback (most recent call last):
        OverflowError: uint32(-1) is outside 0..4294967295
    """

    __slots__ = ("dtype", "high", "kind", "low", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(name)
        self.kind = self.dtype.kind
        self.low: Number = 0
        self.high: Number = 1
        if self.kind in "iu":
            integers = np.iinfo(self.dtype)
            self.low, self.high = int(integers.min), int(integers.max)
        elif self.kind == "f":
            self.high = float(np.finfo(self.dtype).max)
            self.low = -self.high

    def __call__(self, value: Number) -> Number:
        """Cast a value as a kernel does, but raise OverflowError instead of wrapping around."""
        if self.kind == "b":
            return bool(value)
        if self.kind == "f":
            number = float(value)
            if not self.holds(number):
                raise OverflowError(f"{self.name}({value}) is outside {self.low}..{self.high}")
            return float(self.dtype.type(number))
        number = int(value)
        if not self.low <= number <= self.high:
            raise OverflowError(f"{self.name}({value}) is outside {self.low}..{self.high}")
        return Unsigned(number) if self.kind == "u" else number

    def holds(self, value: Number) -> bool:
        """Return whether the value, of a type that may be stored, is in this type's range."""
        return self.low <= value <= self.high or (self.kind == "f" and not math.isfinite(value))


CASTS: Final = {
    name: Cast(name)
    for name in (
        "bool",
        *("int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
"""The types of numbers and arrays in kernels, by NumPy's name."""


def as_cast(dtype: object) -> Cast:
    """Return the cast for a type, in any of the spellings that kernels use.

    Args:
        dtype: A cast, a NumPy dtype or scalar type, or a numba type.

    Raises:
        NotImplementedError: The simulator has no such type.
    """
    if isinstance(dtype, Cast):
        return dtype
    # np.dtype accepts too much: None becomes float64, and many classes become object.
    is_numpy = isinstance(dtype, np.dtype | type)
    name = np.dtype(dtype).name if is_numpy else str(dtype)  # type: ignore[call-overload]  # a type
    if name not in CASTS:
        raise NotImplementedError(f"the simulator has no type {dtype}; it has {', '.join(CASTS)}")
    return CASTS[name]


def as_number(value: object) -> Number:
    """Return a Python number for a scalar argument or global of a kernel.

    Raises:
        TypeError: It is not a number.
    """
    if isinstance(value, np.generic):
        return as_cast(value.dtype)(value.item())
    if isinstance(value, int | float):
        return value
    raise TypeError(f"expected an array or a number, got {type(value).__name__}")


class Namespace:
    """A module in a simulated kernel; a missing attribute raises NotImplementedError."""

    _title: str

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(f"the simulator has no {self._title}.{name}")


class NumpyNamespace(Namespace):
    """NumPy in a simulated kernel: the number types and a few constants.

    Example:
        >>> NumpyNamespace().int64(7)
        7
        >>> NumpyNamespace().cumsum
        Traceback (most recent call last):
        NotImplementedError: the simulator has no np.cumsum
    """

    _title = "np"
    bool_ = CASTS["bool"]
    intp = CASTS["int64"]
    uintp = CASTS["uint64"]
    inf = math.inf
    nan = math.nan
    pi = math.pi

    def __init__(self) -> None:
        vars(self).update(CASTS)
