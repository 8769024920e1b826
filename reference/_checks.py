"""The checks of arguments: one for each kind of input, each naming the argument at fault.

A check raises, or returns the value in the form in which the definitions read it: integers as
Python ints, vectors that are read as a whole as lists of them. So no arithmetic behind a check
overflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
IntArray: TypeAlias = NDArray[np.integer[Any]]
Dtypes: TypeAlias = type[Any] | Sequence[type[Any]]

MAX_INT32 = 2**31 - 1
"""The greatest size, and the greatest block id."""

MAX_INT64 = 2**63 - 1
"""The greatest number of bytes, of a request's scheduled tokens, and the longest axis."""

COUNT_DTYPES = (np.int32, np.int64)
"""The dtypes of the token counts that a caller's own batch holds."""

NO_NUMPY_VIEW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""The dtypes of which a torch tensor has no NumPy view."""

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *NO_NUMPY_VIEW,
)
"""The dtypes of buffers and caches, by name: those that torch has too."""


def check_int(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return an integer as a Python int; refuse bools, other types, and what is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), but must be an int")
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} is {value}, but must be at least {minimum}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} is {value}, but must be at most {maximum}")
    return int(value)


def check_size(name: str, value: object) -> int:
    """Return a size, an int in 1 .. 2**31 - 1."""
    return check_int(name, value, 1, MAX_INT32)


def check_index(name: str, value: object, length: int) -> int:
    """Return an index in 0 .. length - 1; outside it is an `IndexError`."""
    index = check_int(name, value)
    if not 0 <= index < length:
        raise IndexError(f"{name} is {index}, but must be in 0 .. {length - 1}")
    return index


def check_bool(name: str, value: object) -> bool:
    """Return a Python or NumPy bool as a Python bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), but must be a bool")
    return bool(value)


def check_str(name: str, value: object) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}), but must be a str")
    return value


def check_dtype(name: str, value: object) -> np.dtype[Any]:
    """Return the dtype that a NumPy dtype or scalar type means, one that torch has too."""
    dtype = value
    if isinstance(value, type) and issubclass(value, np.generic) and value.__name__ in DTYPES:
        dtype = np.dtype(value)
    if not isinstance(dtype, np.dtype) or dtype.name not in DTYPES or not dtype.isnative:
        raise TypeError(f"{name} is {dtype!r}, but must be a NumPy dtype of {', '.join(DTYPES)}")
    return dtype


def is_kind(value: object, *names: str) -> bool:
    """Say whether the class of a value, or a class that it extends, has one of these names.

    So classes are told apart, that an engine's own of the same name may stand for those here.
    """
    return any(cls.__name__ in names for cls in type(value).__mro__)


def check_list(name: str, value: object, length: int | None = None) -> list[Any]:
    """Return a list, of the given length if one is given."""
    if not isinstance(value, list):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a list")
    if length is not None and len(value) != length:
        raise ValueError(f"{name} has {len(value)} entries, but must have {length}")
    return value


def check_strs(name: str, value: object) -> list[str]:
    """Return a list of strs."""
    entries = check_list(name, value)
    return [check_str(f"{name}[{i}]", entry) for i, entry in enumerate(entries)]


def check_sequence(name: str, value: object) -> list[Any] | tuple[Any, ...]:
    """Return a list or a tuple."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a list or tuple")
    return value


def check_class(name: str, value: object) -> type[Any]:
    """Return a class."""
    if not isinstance(value, type):
        raise TypeError(f"{name} is {value!r}, but must be a class")
    return value


def check_dict(name: str, value: object) -> dict[Any, Any]:
    """Return a dict."""
    if not isinstance(value, dict):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a dict")
    return value


def check_ints(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> list[int]:
    """Return a list of ints, each within the bounds."""
    entries = check_list(name, value)
    return [check_int(f"{name}[{i}]", entry, minimum, maximum) for i, entry in enumerate(entries)]


def check_array(name: str, value: object, dtypes: Dtypes, ndim: int | None) -> Array:
    """Return an array of one of the dtypes, with so many dimensions (None: at least one).

    One that may lack entries, a masked array, is none.
    """
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a NumPy array")
    allowed = [np.dtype(dtype) for dtype in (dtypes if isinstance(dtypes, Sequence) else [dtypes])]
    if value.dtype not in allowed:
        names = " or ".join(dtype.name for dtype in allowed)
        raise TypeError(f"{name} has dtype {value.dtype}, but must have {names}")
    if value.ndim != ndim and (ndim is not None or value.ndim == 0):
        wanted = "at least 1 dimension" if ndim is None else f"{ndim} dimension(s)"
        raise ValueError(f"{name} has shape {value.shape}, but must have {wanted}")
    return value


def check_counts(name: str, value: object, length: int | None = None) -> list[int]:
    """Return the first `length` (or all) entries of a vector of token counts, none negative."""
    array = check_array(name, value, COUNT_DTYPES, ndim=1)
    if length is not None and len(array) < length:
        raise ValueError(f"{name} has {len(array)} entries, but must have at least {length}")
    counts: list[int] = array[:length].tolist()
    for i, count in enumerate(counts):
        check_int(f"{name}[{i}]", count, 0)
    return counts


def check_query_start_loc(name: str, value: object) -> list[int]:
    """Return where each request's tokens start; they begin at 0 and do not decrease."""
    starts: list[int] = check_array(name, value, np.int32, ndim=1).tolist()
    if not starts:
        raise ValueError(f"{name} has 0 entries, but must have one more than there are requests")
    if starts[0] != 0:
        raise ValueError(f"{name}[0] is {starts[0]}, but must be 0")
    for i in range(1, len(starts)):
        if starts[i] < starts[i - 1]:
            raise ValueError(
                f"{name}[{i}] is {starts[i]}, less than {starts[i - 1]} before it, "
                "but must not decrease"
            )
    return starts


def check_slice(name: str, value: object, length: int) -> tuple[int, int]:
    """Return start and stop of a slice of ints, with 0 <= start <= stop <= length."""
    if not isinstance(value, slice):
        raise TypeError(f"{name} is a {type(value).__name__}, but must be a slice")
    start = check_int(f"{name}.start", value.start)
    stop = check_int(f"{name}.stop", value.stop)
    if value.step is not None and check_int(f"{name}.step", value.step) != 1:
        raise ValueError(f"{name}.step is {value.step}, but must be None or 1")
    if not 0 <= start <= stop <= length:
        raise ValueError(f"{name} is {start}:{stop}, but must lie within 0:{length}")
    return start, stop


@dataclass(frozen=True)
class BlockLayout:
    """How the positions of a sequence lie in blocks: checked sizes, all at least 1.

    Attributes:
        block_size: Positions in a block of one rank.
        kernel_block_size: Positions in a block as the table lists them; divides `block_size`.
        cp_world_size: Number of context-parallel ranks.
        cp_rank: The rank whose slots are meant.
        interleave: Consecutive positions that stay on one rank; divides `block_size`.
    """

    block_size: int
    kernel_block_size: int
    cp_world_size: int
    cp_rank: int
    interleave: int


def check_block_layout(
    block_size: object,
    kernel_block_size: object,
    cp_world_size: object,
    cp_rank: object,
    cp_kv_cache_interleave_size: object,
) -> BlockLayout:
    """Return the sizes of blocks and of context parallelism, which must fit together."""
    block = check_size("block_size", block_size)
    kernel_block = block
    if kernel_block_size is not None:
        kernel_block = check_size("kernel_block_size", kernel_block_size)
    if block % kernel_block != 0:
        raise ValueError(f"kernel_block_size is {kernel_block}, but must divide block_size {block}")
    world = check_size("cp_world_size", cp_world_size)
    if block * world > MAX_INT32:
        raise ValueError(
            f"block_size {block} times cp_world_size {world} is {block * world}, "
            f"but must be at most {MAX_INT32}"
        )
    rank = check_int("cp_rank", cp_rank, 0, world - 1)
    interleave = check_size("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)
    if block % interleave != 0:
        raise ValueError(
            f"cp_kv_cache_interleave_size is {interleave}, but must divide block_size {block}"
        )
    return BlockLayout(block, kernel_block, world, rank, interleave)


def check_tokens(query_start_loc: object, positions: object) -> tuple[list[int], Array]:
    """Return the starts of a batch and its tokens' positions, of which there must be enough."""
    starts = check_query_start_loc("query_start_loc", query_start_loc)
    array = check_array("positions", positions, np.int64, ndim=1)
    if starts[-1] > len(array):
        raise ValueError(
            f"query_start_loc ends at {starts[-1]}, but positions has only {len(array)} entries"
        )
    return starts, array


def check_out(value: object, length: int, inputs: Mapping[str, Array]) -> Array:
    """Return an array to write to: long enough, and no part of it an input or another part."""
    out = check_array("out", value, np.int64, ndim=1)
    if len(out) < length:
        raise ValueError(f"out has {len(out)} entries, but must have at least {length}")
    _check_own_memory(out, inputs)
    if len(out) > 1 and abs(out.strides[0]) < out.itemsize:
        raise ValueError(f"out has stride {out.strides[0]} bytes, so its entries share memory")
    return out


def check_rows_out(
    value: object,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    inputs: Mapping[str, Array],
    *,
    may_be_longer: bool = False,
) -> Array:
    """Return an array whose rows can be written to: in one piece, and no part of it an input."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"out is a {type(value).__name__}, but must be a NumPy array")
    if value.dtype != dtype:
        raise TypeError(f"out has dtype {value.dtype}, but must have {dtype}")
    is_longer = may_be_longer and value.ndim == len(shape) and len(value) >= shape[0]
    wanted = (len(value), *shape[1:]) if is_longer else shape
    if value.shape != wanted:
        at_least = ", or more rows" if may_be_longer else ""
        raise ValueError(f"out has shape {value.shape}, but must have {shape}{at_least}")
    if not value.flags.c_contiguous:
        raise ValueError(f"out has strides {value.strides} bytes, but must lie in one piece")
    _check_own_memory(value, inputs)
    return value


def _check_own_memory(out: Array, inputs: Mapping[str, Array]) -> None:
    """Refuse what cannot be written to, or is an input's memory too."""
    if not out.flags.writeable:
        raise ValueError("out is read-only, but is to be written")
    for name, array in inputs.items():
        if np.shares_memory(out, array):
            raise ValueError(f"out shares memory with {name}, but must not")
