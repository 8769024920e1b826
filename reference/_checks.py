"""Checks of arguments: one for each kind of input. The message names the argument.

A check raises, or returns the value in the form that the definitions use: integers as Python ints,
whole vectors as lists of them. So no arithmetic after a check overflows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
IntArray: TypeAlias = NDArray[np.integer[Any]]
BoolArray: TypeAlias = NDArray[np.bool_]
Dtypes: TypeAlias = type[Any] | Sequence[type[Any]]

MAX_INT32 = 2**31 - 1
"""The greatest size, and the greatest block ID."""

DUMMY_ROW = -1
"""The request slot of a batch row that is no request."""

MAX_INT64 = 2**63 - 1
"""The greatest number of bytes, of a request's scheduled tokens, and of entries in a dimension."""

COUNT_DTYPES = (np.int32, np.int64)
"""The dtypes of token counts in a caller's own batch."""

NO_NUMPY_VIEW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""The dtypes for which a torch tensor has no NumPy view."""

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *NO_NUMPY_VIEW,
)
"""The dtypes of buffers and caches, by name: those that torch has too."""


_KINDS: dict[Any, str] = {
    str: "a str",
    type: "a class",
    dict: "a dict",
    list | tuple: "a list or tuple",
}


def describe(value: object) -> str:
    """Return a value and its type in words that are the same for both twins."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return "array"
    if is_numpy_dtype(value):
        return f"dtype {get_dtype_name(value)}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, list | tuple | dict | set | frozenset):  # may hold anything
        return kind.__name__
    if kind.__repr__ is object.__repr__:  # an address says nothing
        return f"object of {kind.__name__}"
    return f"{show(value)} of {kind.__name__}"


def is_numpy_dtype(value: object) -> bool:
    """Return whether a value is a NumPy dtype or scalar type."""
    return isinstance(value, np.dtype) or (
        isinstance(value, type) and issubclass(value, np.generic)
    )


def get_dtype_name(value: Any) -> str:
    if isinstance(value, np.dtype):
        return value.name if value.isnative else value.str
    return str(value.__name__)


def show(value: object) -> str:
    """Return the `repr` of a value, with dtypes by their bare names, such as `int32`."""
    return re.sub(r"dtype\('?(\w+)'?\)", r"\1", repr(value))


def get_type_name(value: object) -> str:
    """Return the name of a value's type; `array` for an array, so that both twins agree."""
    return "array" if isinstance(value, np.ndarray) else type(value).__name__


def is_int(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a value is a Python or NumPy integer, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_int(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return an integer as a Python int; reject bools, other types, and values out of bounds."""
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    is_small = minimum is not None and value < minimum
    is_large = maximum is not None and value > maximum
    if is_small or is_large:
        allowed = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
        raise ValueError(f"{name} is {value}, expected {allowed}")
    return int(value)


def check_size(name: str, value: object) -> int:
    """Return a size, an int in 1 .. 2**31 - 1."""
    return check_int(name, value, 1, MAX_INT32)


def check_index(name: str, value: object, length: int) -> int:
    """Return an index in 0 .. length - 1; raise IndexError if it is outside."""
    index = check_int(name, value)
    if not 0 <= index < length:
        raise IndexError(f"{name} is {index}, expected 0 to {length - 1}")
    return index


def check_divisor(name: str, value: int, whole_name: str, whole: int) -> None:
    if whole % value != 0:
        raise ValueError(f"{name} is {value}, expected a divisor of {whole_name} {whole}")


def check_product(name: str, value: int, other_name: str, other: int) -> None:
    if value * other > MAX_INT32:
        raise ValueError(
            f"{name} {value} times {other_name} {other} is {value * other}, "
            f"expected at most {MAX_INT32}"
        )


def check_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a bool, got {describe(value)}")
    return bool(value)


def check_dtype(name: str, value: object) -> np.dtype[Any]:
    """Return a NumPy dtype or scalar type as a dtype; it must be one that torch has too."""
    dtype = value
    if isinstance(value, type) and issubclass(value, np.generic) and value.__name__ in DTYPES:
        dtype = np.dtype(value)
    if not isinstance(dtype, np.dtype) or dtype.name not in DTYPES or not dtype.isnative:
        got = f"NumPy dtype {get_dtype_name(value)}" if is_numpy_dtype(value) else describe(value)
        raise TypeError(f"{name} must be a supported dtype, got {got}")
    return dtype


def is_kind(value: object, *names: str) -> bool:
    """Return whether the class of a value, or one of its base classes, has one of these names.

    Classes are compared by name, so that an engine's own class of the same name is accepted.
    """
    return any(cls.__name__ in names for cls in type(value).__mro__)


def check_type(name: str, value: object, kind: Any, expected: str = "") -> Any:
    """Return an instance of a class; the message says what was `expected`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected or _KINDS[kind]}, got {describe(value)}")
    return value


def check_mapping(name: str, value: object) -> None:
    """Check that a value is a mapping, which may be an engine's own."""
    if not hasattr(value, "get"):
        raise TypeError(f"{name} must be a mapping, got {get_type_name(value)}")


def check_length(name: str, found: int, length: int, of: str = "") -> None:
    """Check a length; the message may say `of` what it is the length, such as "num_reqs = "."""
    if found != length:
        raise ValueError(f"{name} has {found} entries, expected {of}{length}")


def check_at_least(name: str, found: int, length: int, of: str = "", unit: str = "entries") -> None:
    """Check that something is at least as long as `length`."""
    if found < length:
        raise ValueError(f"{name} has {found} {unit}, expected at least {of}{length}")


def check_not_empty(name: str, values: Any, what: str) -> None:
    if not values:
        raise ValueError(f"{name} is empty, expected at least 1 {what}")


def check_one_each(name: str, entries: Sequence[Any], num_groups: int) -> None:
    if len(entries) != num_groups:
        raise ValueError(
            f"{name} has {len(entries)} entries, expected {num_groups}, one for each KV cache group"
        )


def check_list(name: str, value: object, length: int | None = None) -> list[Any]:
    """Return a list, of the given length if one is given."""
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, got {get_type_name(value)}")
    if length is not None:
        check_length(name, len(value), length)
    return value


def check_strs(name: str, value: object) -> list[str]:
    entries = check_list(name, value)
    return [check_type(f"{name}[{i}]", entry, str) for i, entry in enumerate(entries)]


def check_ints(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> list[int]:
    """Return a list of ints, each within the bounds."""
    entries = check_list(name, value)
    return [check_int(f"{name}[{i}]", entry, minimum, maximum) for i, entry in enumerate(entries)]


def check_is_array(name: str, value: object) -> Array:
    """Return an array of any kind; a tensor or a subclass may be meant, but is none."""
    if not isinstance(value, np.ndarray):
        wanted = "a NumPy array" if type(value).__name__ == "Tensor" else "an array"
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    return value


def check_array(
    name: str, value: object, dtypes: Dtypes, ndim: int | None, min_length: int = 0
) -> Array:
    """Return an array of one of the dtypes with `ndim` dimensions (None: at least one).

    Masked arrays are rejected, since their entries may be missing.
    """
    array = check_is_array(name, value)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a NumPy array, got {type(array).__name__}")
    allowed = [np.dtype(dtype) for dtype in (dtypes if isinstance(dtypes, Sequence) else [dtypes])]
    if array.dtype not in allowed:
        names = " or ".join(dtype.name for dtype in allowed)
        raise TypeError(f"{name} must be {names}, got {array.dtype}")
    if ndim is not None:
        check_ndim(name, array, ndim)
    elif array.ndim == 0:
        raise ValueError(f"{name} must have at least 1 dimension, got shape {array.shape}")
    if min_length:
        check_at_least(name, len(array), min_length)
    return array


def check_ndim(name: str, array: Array, *allowed: int) -> None:
    if array.ndim not in allowed:
        wanted = " or ".join(map(str, allowed)) + f" dimension{'s'[allowed == (1,) :]}"
        raise ValueError(f"{name} must have {wanted}, got shape {array.shape}")


def check_counts(name: str, value: object, length: int | None = None) -> list[int]:
    """Return the first `length` (or all) entries of a vector of token counts, all at least 0."""
    array = check_array(name, value, COUNT_DTYPES, 1, length or 0)
    counts: list[int] = array[:length].tolist()
    check_not_negative(name, counts)
    return counts


def check_not_negative(name: str, values: list[int]) -> None:
    for i, value in enumerate(values):
        if value < 0:
            raise ValueError(f"{name}[{i}] is {value}, expected at least 0")


def check_query_start_loc(name: str, value: object) -> list[int]:
    """Return where each request's tokens start; they begin at 0 and do not decrease."""
    starts: list[int] = check_array(name, value, np.int32, ndim=1).tolist()
    check_starts(name, starts)
    return starts


def check_starts(name: str, starts: list[int]) -> None:
    """Check that starts begin at 0 and do not decrease."""
    if not starts:
        raise ValueError(f"{name} is empty, expected num_reqs + 1 entries")
    if starts[0] != 0:
        raise ValueError(f"{name}[0] is {starts[0]}, expected 0")
    check_order(name, starts)


def check_row_starts(name: str, value: object, num_reqs: int) -> list[int]:
    """Return where the tokens, or logits, of each batch row start, with the end."""
    starts: list[int] = check_array(name, value, np.int32, 1, num_reqs + 1).tolist()
    check_starts(name, starts[: num_reqs + 1])
    return starts[: num_reqs + 1]


def check_request_slots(idx_mapping: object, max_num_reqs: int) -> list[int]:
    """Return the request slot of each batch row, or `DUMMY_ROW`; no two rows have the same."""
    slots: list[int] = check_array("idx_mapping", idx_mapping, COUNT_DTYPES, 1).tolist()
    rows: dict[int, int] = {}
    for row, slot in enumerate(slots):
        if not DUMMY_ROW <= slot < max_num_reqs:
            raise IndexError(
                f"idx_mapping[{row}] is {slot}, expected {DUMMY_ROW} to {max_num_reqs - 1}"
            )
    for row, slot in enumerate(slots):
        if slot != DUMMY_ROW and rows.setdefault(slot, row) != row:
            raise ValueError(f"idx_mapping[{row}] is {slot}, the request slot of another row too")
    return slots


def check_states(name: str, value: object, dtypes: Dtypes, ndim: int, max_num_reqs: int) -> Array:
    """Return an array with an entry, or a row, for each request slot."""
    array = check_array(name, value, dtypes, ndim)
    check_length(name, len(array), max_num_reqs, "max_num_reqs = ")
    return array


def check_column(name: str, value: object, dtypes: Dtypes, max_num_reqs: int) -> Array:
    """Return an array with one number for each request slot, which may be a matrix of a column."""
    array = check_array(name, value, dtypes, None)
    if array.shape not in {(max_num_reqs,), (max_num_reqs, 1)}:
        raise ValueError(
            f"{name} has shape {array.shape}, expected max_num_reqs = {max_num_reqs} entries"
        )
    return array


def check_order(name: str, values: list[int], *, strict: bool = False) -> None:
    """Check that the entries of a vector do not decrease; if `strict`, that they increase."""
    for i in range(1, len(values)):
        if values[i] < values[i - 1] or (strict and values[i] == values[i - 1]):
            said = "expected more" if strict else "less"
            raise ValueError(f"{name}[{i}] is {values[i]}, {said} than {values[i - 1]} before it")


def check_slice(name: str, value: object, length: int) -> tuple[int, int]:
    """Return start and stop of a slice of ints, with 0 <= start <= stop <= length."""
    if not isinstance(value, slice):
        raise TypeError(f"{name} must be a slice, got {get_type_name(value)}")
    if value.step is not None and check_int(f"{name}.step", value.step) != 1:
        raise ValueError(f"{name}.step is {value.step}, expected None or 1")
    stop = check_int(f"{name}.stop", value.stop, 0, length)
    return check_int(f"{name}.start", value.start, 0, stop), stop


def check_tokens(query_start_loc: object, positions: object) -> tuple[list[int], Array]:
    """Return the starts of a batch and the positions, which must cover all its tokens."""
    starts = check_query_start_loc("query_start_loc", query_start_loc)
    array = check_array("positions", positions, np.int64, ndim=1)
    if starts[-1] > len(array):
        raise ValueError(
            f"query_start_loc[-1] is {starts[-1]}, but positions has {len(array)} entries"
        )
    return starts, array


def check_out(value: object, length: int, inputs: Iterable[Array]) -> Array:
    """Return an array to write to: long enough, overlapping neither an input nor itself."""
    out = check_array("out", value, np.int64, 1, length)
    if len(out) > 1 and abs(out.strides[0]) < out.itemsize:
        raise ValueError("out is one element repeated, expected one for each token")
    _check_own_memory("out", out, inputs)
    return out


def check_rows_out(
    value: object,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    inputs: Iterable[Array],
    *,
    may_be_longer: bool = False,
) -> Array:
    """Return an array whose rows can be written: contiguous, not overlapping an input."""
    out = check_is_array("out", value)
    if out.dtype != dtype:
        raise TypeError(f"out must be {dtype}, got {out.dtype}")
    is_longer = may_be_longer and out.ndim == len(shape) and len(out) >= shape[0]
    wanted = (len(out), *shape[1:]) if is_longer else shape
    if out.shape != wanted:
        more = " or more rows" if may_be_longer else ""
        raise ValueError(f"out has shape {out.shape}, expected {shape}{more}")
    if not out.flags.c_contiguous:
        raise ValueError("out is not contiguous, expected memory in one piece")
    _check_own_memory("out", out, inputs)
    return out


def check_written(written: Mapping[str, Array], inputs: Iterable[Array]) -> None:
    """Check that the arrays that a function writes are contiguous, and overlap no other array."""
    others = list(inputs)
    for name, array in written.items():
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous, expected memory in one piece")
        _check_own_memory(name, array, others)
        others.append(array)


def _check_own_memory(name: str, out: Array, inputs: Iterable[Array]) -> None:
    """Check that an array is writable and shares no memory with an input."""
    if not out.flags.writeable:
        raise ValueError(f"{name} is read-only, expected memory that can be written")
    for array in inputs:
        if np.shares_memory(out, array):
            raise ValueError(f"{name} shares memory with an input, expected memory of its own")
