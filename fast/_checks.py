"""Check arguments: one `check_*` for each kind of input.

Each raises TypeError for a wrong type or dtype and ValueError for a wrong value, unless its
docstring says otherwise. Checks that cost O(1), and those of Python lists, are always made; checks
that read the values of a tensor are for checked mode (`fast.checked_mode`).
"""

import math
from collections.abc import Callable, Sequence
from operator import countOf
from types import UnionType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor  # this lookup takes 0.04 us less than that of torch.Tensor

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

INT32: Final = torch.int32  # the lookup takes 0.05 us less
INT64: Final = torch.int64
BOOL: Final = torch.bool
INT32_OR_INT64: Final = (torch.int32, torch.int64)
STRIDED: Final = torch.strided
CPU: Final = torch.device("cpu")
INT_DTYPES: Final = (np.dtype(np.int32), np.dtype(np.int64))

PLAIN_CLASSES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of tensors with memory of their own, except special kinds such as sparse."""

MAX_SIZE: Final = 2**31 - 1
"""The greatest size: the greatest int32."""

NO_MINIMUM: Final[Any] = -math.inf

MAX_INT64: Final = 2**63 - 1
"""The greatest number of bytes, of requests and of tokens."""


def describe(value: object) -> str:
    """Return a value and its type in words that are the same for both twins."""
    kind = type(value)
    if isinstance(value, Tensor | np.ndarray):
        return "array"
    if isinstance(value, torch.dtype):
        return f"dtype {get_dtype_name(value)}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, list | tuple | dict | set | frozenset):  # may contain anything
        return kind.__name__
    if kind.__repr__ is object.__repr__:  # its repr contains an address
        return f"object of {kind.__name__}"
    return f"{show(value)} of {kind.__name__}"


def show(value: object) -> str:
    """Return the `repr` of a value, with dtypes by their bare names, such as `int32`."""
    return repr(value).replace("torch.", "")


def get_type_name(value: object) -> str:
    """Return the name of a value's type; `array` for an array, so that both twins agree."""
    return "array" if isinstance(value, Tensor | np.ndarray) else type(value).__name__


def get_dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def is_int(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer, and not a bool."""
    return type(value) is int or (
        isinstance(value, int | np.integer) and not isinstance(value, bool)
    )


def is_kind(value: object, name: str) -> bool:
    """Return whether one of a value's classes has this name; it may be an engine's own class."""
    return any(cls.__name__ == name for cls in type(value).__mro__)


def check_int(name: str, value: object, minimum: int = 1, maximum: int | None = MAX_SIZE) -> int:
    """Return an integer in `minimum .. maximum` as a Python int; no upper bound if that is None."""
    if type(value) is int and minimum <= value and (maximum is None or value <= maximum):
        return value  # the usual case, in a third of the time
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    number = int(value)  # type: ignore[call-overload]  # is_int has just said so
    if maximum is None and number < minimum:
        raise ValueError(f"{name} is {number}, expected at least {minimum}")
    if maximum is not None and not minimum <= number <= maximum:
        raise ValueError(f"{name} is {number}, expected {minimum} to {maximum}")
    return int(number)


def check_index(name: str, value: object, length: int) -> int:
    """Return an index in `0 .. length - 1` as a Python int; raise IndexError if it is outside."""
    index = check_int(name, value, NO_MINIMUM, None)
    if not 0 <= index < length:
        raise IndexError(f"{name} is {index}, expected 0 to {length - 1}")
    return index


def check_divisor(name: str, value: int, whole_name: str, whole: int) -> None:
    if whole % value:
        raise ValueError(f"{name} is {value}, expected a divisor of {whole_name} {whole}")


def check_product(name: str, value: int, other_name: str, other: int) -> None:
    if value * other > MAX_SIZE:
        raise ValueError(
            f"{name} {value} times {other_name} {other} is {value * other}, expected at most"
            f" {MAX_SIZE}"
        )


def check_bool(name: str, value: object) -> None:
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a bool, got {describe(value)}")


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Check that a value is an instance of `kind`; the message says what was `expected`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected}, got {describe(value)}")


def check_mapping(name: str, value: object) -> None:
    """Check that a value is a mapping, which may be an engine's own."""
    if not hasattr(value, "get"):
        raise TypeError(f"{name} must be a mapping, got {get_type_name(value)}")


def check_dtype(name: str, value: object) -> torch.dtype:
    """Return a torch dtype; names of dtypes and NumPy's dtypes are rejected."""
    if isinstance(value, torch.dtype):
        return value
    got = describe(value)
    if isinstance(value, np.dtype):
        got = f"NumPy dtype {value.name if value.isnative else value.str}"
    elif isinstance(value, type) and issubclass(value, np.generic):
        got = f"NumPy dtype {value.__name__}"
    raise TypeError(f"{name} must be a supported dtype, got {got}")


def check_device(name: str, value: object) -> torch.device:
    """Return a device, or the name of one, as a `torch.device`; torch must have it here."""
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a device, got {value!r} of {type(value).__name__}")
    try:
        device = torch.device(value)
        torch.empty(0, device=device)  # torch knows the names of devices that it lacks
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"{name} is {value!r}, expected a device that torch has here") from error
    return device


def check_length(name: str, found: int, length: int, of: str = "", unit: str = "entries") -> None:
    """Check a length; the message may say `of` what it is the length, such as "num_reqs = "."""
    if found != length:
        raise ValueError(f"{name} has {found} {unit}, expected {of}{length}")


def check_at_least(name: str, found: int, length: int, of: str = "", unit: str = "entries") -> None:
    """Check that something is at least as long as `length`."""
    if found < length:
        raise ValueError(f"{name} has {found} {unit}, expected at least {of}{length}")


def check_one_each(name: str, values: Sequence[Any], num_groups: int) -> None:
    if len(values) != num_groups:
        raise ValueError(
            f"{name} has {len(values)} entries, expected {num_groups}, one for each KV cache group"
        )


def check_not_empty(name: str, values: Any, what: str) -> None:
    if not values:
        raise ValueError(f"{name} is empty, expected at least 1 {what}")


def check_list(name: str, value: object, length: int | None = None) -> None:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, got {get_type_name(value)}")
    if length is not None:
        check_length(name, len(value), length)


def check_strs(name: str, values: list[str]) -> None:
    check_list(name, values)
    for i, value in enumerate(values):
        check_type(f"{name}[{i}]", value, str, "a str")


def check_ints(
    name: str,
    values: Sequence[Any],
    minimum: int,
    maximum: int,
    error: type[Exception] = ValueError,
) -> npt.NDArray[np.int64]:
    """Return a list of ints in `minimum .. maximum` as int64; `error` is raised for one outside."""
    # The types of a list are a set of one or two: no Python step for each entry.
    for kind in set(map(type, values)):
        if kind is not int and (not issubclass(kind, int | np.integer) or issubclass(kind, bool)):
            at = next(i for i, value in enumerate(values) if type(value) is kind)
            raise TypeError(f"{name}[{at}] must be an int, got {describe(values[at])}")
    if values and (min(values) < minimum or max(values) > maximum):
        at = next(i for i, v in enumerate(values) if not minimum <= v <= maximum)
        raise error(f"{name}[{at}] is {values[at]}, expected {minimum} to {maximum}")
    return np.array(values, dtype=np.int64)


def pack_ints(values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """Return Python's ints as int64[len(values)]; None if one is anything else, or too large."""
    if countOf(map(type, values), int) < len(values):
        return None
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return None


def check_tensor(
    name: str,
    value: Any,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    ndim: int,
    device: torch.device | None = None,
) -> None:
    """Check that a value is a tensor with a dtype and number of dimensions, on `device`."""
    if (
        type(value) is Tensor
        and (value.dtype is dtype or (type(dtype) is tuple and value.dtype in dtype))
        and value.ndim == ndim
        and value.layout is STRIDED
        and not value.is_nested
        and (device is None or value.device == device)
    ):
        return
    check_dense(name, value)
    check_dtypes(name, value, dtype)
    check_ndim(name, value, ndim)
    if device is not None:
        check_on(name, value, device)


def check_entries(
    name: str,
    value: Any,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    ndim: int,
    length: int,
    device: torch.device | None = None,
) -> None:
    """Check that a value is such a tensor, with at least `length` entries, or rows."""
    if not (
        type(value) is Tensor
        and value.dtype is dtype
        and value.is_cpu
        and value.ndim == ndim
        and value.layout is STRIDED
        and (ndim == 1 or not value.is_nested)
        and (value.nelement() if ndim == 1 else value.shape[0]) >= length
        and (device is None or device == CPU)
    ):
        check_tensor(name, value, dtype, ndim, device)
        check_at_least(name, value.shape[0], length)


def check_vector(name: str, value: Any, dtype: torch.dtype, length: int | None = None) -> None:
    """Check that a value is a vector on the CPU with `length` entries of a dtype."""
    if (
        type(value) is Tensor
        and value.dtype is dtype
        and value.is_cpu
        and value.ndim == 1
        and value.layout is STRIDED
        and (length is None or value.nelement() == length)
    ):
        return
    check_tensor(name, value, dtype, 1, CPU)
    if length is not None:
        check_length(name, value.shape[0], length)


def check_dense(name: str, value: object) -> None:
    """Check that a value is a tensor with strides: not sparse, nested, or of a library's layout."""
    if not isinstance(value, Tensor):
        wanted = "a torch tensor" if isinstance(value, np.ndarray) else "an array"
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    if value.layout is not torch.strided or value.is_nested:
        check_kind(name, value)


def check_kind(name: str, value: torch.Tensor) -> None:
    """Check that a tensor's elements are in memory of its own.

    They are not if it is sparse, nested, wrapped by `torch.func`, or of a class without memory.
    """
    if value.layout is not torch.strided:
        found = f"a {str(value.layout).removeprefix('torch.')} tensor"
    elif value.is_nested:
        found = "a nested tensor"
    elif _is_wrapped(value):
        found = "one wrapped by torch.func"
    elif type(value) not in PLAIN_CLASSES:
        found = f"a {type(value).__name__}"
    else:
        return
    raise TypeError(f"{name} must be a dense tensor in memory, got {found}")


def is_functional(value: torch.Tensor) -> bool:
    """Return whether `functionalize` wraps a tensor, whose own memory is then not initialised."""
    return torch._is_functional_tensor(value)  # noqa: SLF001  (there is no public name)


def _is_wrapped(value: torch.Tensor) -> bool:
    """Return whether a tensor wraps another one, as in `torch.vmap` and `functionalize`."""
    functorch: Any = getattr(torch._C, "_functorch", None)  # noqa: SLF001  (there is no public name)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return is_functional(value) or bool(is_wrapped and is_wrapped(value))


def check_dtypes(
    name: str, value: torch.Tensor, dtypes: torch.dtype | tuple[torch.dtype, ...]
) -> None:
    allowed = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if value.dtype not in allowed:
        names = " or ".join(map(get_dtype_name, allowed))
        raise TypeError(f"{name} must be {names}, got {get_dtype_name(value.dtype)}")


def check_ndim(name: str, value: torch.Tensor, *allowed: int) -> None:
    if value.dim() not in allowed:
        wanted = " or ".join(map(str, allowed)) + f" dimension{'s'[allowed == (1,) :]}"
        raise ValueError(f"{name} must have {wanted}, got shape {tuple(value.shape)}")


def check_on(name: str, value: torch.Tensor, device: torch.device) -> None:
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}, expected {device}")


def check_array(
    name: str, value: object, min_length: int = 0, dtypes: Sequence[Any] = INT_DTYPES
) -> None:
    """Check that a value is a vector of NumPy of a dtype, without a mask and long enough."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        wanted = "a NumPy array" if isinstance(value, Tensor | np.ndarray) else "an array"
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    if value.dtype not in dtypes:
        names = " or ".join(dtype.name for dtype in dtypes)
        raise TypeError(f"{name} must be {names}, got {value.dtype}")
    if value.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {value.shape}")
    check_at_least(name, len(value), min_length)


def find_first(wrong: npt.NDArray[np.bool_]) -> int:
    """Return the index of the first True entry of a vector; -1 if there is none."""
    return int(wrong.argmax()) if wrong.any() else -1


def check_range(
    name: str,
    at: IntArray,
    values: IntArray,
    least: Any,
    most: Any,
    why: Callable[[int], str] = lambda _: "",
) -> None:
    """Check that entries of a vector are in their ranges; `at` has their indices."""
    k = find_first((values < least) | (values > most))
    if k >= 0:
        least, most = (np.broadcast_to(bound, values.shape)[k] for bound in (least, most))
        raise ValueError(f"{name}[{at[k]}] is {values[k]}, expected {least} to {most}{why(k)}")


def check_minimum(name: str, values: IntArray, minimum: int) -> None:
    at = find_first(values < minimum)
    if at >= 0:
        raise ValueError(f"{name}[{at}] is {values[at]}, expected at least {minimum}")


def check_order(name: str, values: npt.NDArray[Any], *, strict: bool = False) -> None:
    """Check that the entries of a vector do not decrease; if `strict`, that they increase."""
    at = find_first(values[1:] <= values[:-1] if strict else values[1:] < values[:-1]) + 1
    if at > 0:
        said = "expected more" if strict else "less"
        raise ValueError(f"{name}[{at}] is {values[at]}, {said} than {values[at - 1]} before it")


def check_copy(name: str, values: IntArray, other_name: str, other: IntArray) -> None:
    if len(values) != len(other):
        raise ValueError(f"{name} has {len(values)} entries, but {other_name} has {len(other)}")
    at = find_first(values != other)
    if at >= 0:
        raise ValueError(f"{name}[{at}] is {values[at]}, but {other_name}[{at}] is {other[at]}")


def check_any_start(name: str, num_starts: int) -> None:
    if num_starts == 0:
        raise ValueError(f"{name} is empty, expected num_reqs + 1 entries")


def check_starts(name: str, starts: IntArray) -> None:
    """Check that query starts begin at 0 and do not decrease."""
    check_any_start(name, len(starts))
    if starts[0] != 0:
        raise ValueError(f"{name}[0] is {starts[0]}, expected 0")
    check_order(name, starts)


def check_row_starts(name: str, starts: IntArray, num_reqs: int) -> IntArray:
    """Return where the tokens, or logits, of each batch row start, with the end, as int64."""
    found = starts[: num_reqs + 1].astype(np.int64)
    check_starts(name, found)
    return found


def check_request_slots(slots: IntArray, max_num_reqs: int) -> None:
    """Check the request slots of batch rows, -1 for a dummy; no two rows have the same."""
    row = find_first((slots < -1) | (slots >= max_num_reqs))
    if row >= 0:
        raise IndexError(f"idx_mapping[{row}] is {slots[row]}, expected -1 to {max_num_reqs - 1}")
    _, first, place = np.unique(slots, return_index=True, return_inverse=True)
    row = find_first((slots >= 0) & (first[place] < np.arange(len(slots))))
    if row >= 0:
        raise ValueError(f"idx_mapping[{row}] is {slots[row]}, the request slot of another row too")


def check_states(
    name: str,
    value: Any,
    dtype: torch.dtype | tuple[torch.dtype, ...],
    ndim: int,
    max_num_reqs: int,
    device: torch.device,
) -> None:
    """Check that a value is a tensor with an entry, or a row, for each request slot."""
    check_entries(name, value, dtype, ndim, 0, device)
    check_length(name, value.shape[0], max_num_reqs, "max_num_reqs = ")


def check_column(name: str, value: Any, max_num_reqs: int, device: torch.device) -> None:
    """Check that a value has an integer for each request slot, in a vector or a column."""
    check_dense(name, value)
    check_dtypes(name, value, INT32_OR_INT64)
    if tuple(value.shape) not in {(max_num_reqs,), (max_num_reqs, 1)}:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, expected max_num_reqs = {max_num_reqs} entries"
        )
    check_on(name, value, device)


def check_num_reqs(num_reqs: int, num_rows: int) -> None:
    """Check that a block table has a row for each request, and that there is a first start."""
    check_any_start("query_start_loc", num_reqs + 1)
    if num_reqs > num_rows:
        raise ValueError(
            f"query_start_loc has {num_reqs} requests, but block_table has {num_rows} rows"
        )


def check_batch_size(num_reqs: int, num_tokens: int, max_reqs: int, max_tokens: int) -> None:
    """Check that a batch fits into the block tables, and that there is a first start."""
    check_any_start("query_start_loc", num_reqs + 1)
    if num_reqs > max_reqs:
        raise ValueError(f"query_start_loc has {num_reqs} requests, expected at most {max_reqs}")
    if num_tokens > max_tokens:
        raise ValueError(f"positions has {num_tokens} entries, expected at most {max_tokens}")


def check_num_tokens(starts: IntArray, num_positions: int) -> None:
    """Check that a batch has at most as many tokens as positions."""
    if starts[-1] > num_positions:
        raise ValueError(
            f"query_start_loc[-1] is {starts[-1]}, but positions has {num_positions} entries"
        )
