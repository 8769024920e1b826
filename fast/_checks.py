"""What `fast` refuses: one `check_*` for each kind of input.

What costs O(1), and Python lists, are always checked. Checks that read the values of a tensor are
for checked mode (`fast.checked_mode`).
"""

from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

INT32: Final = torch.int32  # found 0.05 us sooner
STRIDED: Final = torch.strided
INT_DTYPES: Final = (np.dtype(np.int32), np.dtype(np.int64))

PLAIN_CLASSES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of tensors that have memory of their own, unless they are of a kind without."""

MAX_SIZE: Final = 2**31 - 1
"""The greatest size: what an int32 can hold."""


def describe(value: object) -> str:
    """Return a value and its type in words that are the same for both twins."""
    kind = type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        return "array"
    if isinstance(value, torch.dtype):
        return f"dtype {get_dtype_name(value)}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, list | tuple | dict | set | frozenset):  # may hold anything
        return kind.__name__
    if kind.__repr__ is object.__repr__:  # an address says nothing
        return f"object of {kind.__name__}"
    return f"{show(value)} of {kind.__name__}"


def show(value: object) -> str:
    """Return the `repr` of a value, in which dtypes stand by their bare names, such as `int32`."""
    return repr(value).replace("torch.", "")


def get_type_name(value: object) -> str:
    """Return the name of a value's type: `array` for what is one in either twin."""
    return "array" if isinstance(value, torch.Tensor | np.ndarray) else type(value).__name__


def get_dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype that both twins have, such as `int32`."""
    return str(dtype).removeprefix("torch.")


def not_a_tensor(name: str, value: object) -> str:
    """Return the message for a value that is no tensor; it says so of a NumPy array."""
    wanted = "a torch tensor" if isinstance(value, np.ndarray) else "an array"
    return f"{name} must be {wanted}, got {type(value).__name__}"


def is_int(value: object) -> bool:
    """Say whether a value is a Python or NumPy integer, and not a bool."""
    return type(value) is int or (
        isinstance(value, int | np.integer) and not isinstance(value, bool)
    )


def check_int(name: str, value: object, minimum: int = 1, maximum: int | None = MAX_SIZE) -> int:
    """Return an integer as a Python int.

    Raises:
        TypeError: it is not an int.
        ValueError: it is outside `minimum .. maximum`, or below `minimum` where `maximum` is None.
    """
    if type(value) is int and minimum <= value and (maximum is None or value <= maximum):
        return value  # what most callers hand over, at a third of the time
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    number = int(value)  # type: ignore[call-overload]  # is_int has just said so
    if maximum is None and number < minimum:
        raise ValueError(f"{name} is {number}, expected at least {minimum}")
    if maximum is not None and not minimum <= number <= maximum:
        raise ValueError(f"{name} is {number}, expected {minimum} to {maximum}")
    return int(number)


def check_index(name: str, value: object, length: int) -> int:
    """Return an index into `length` things as a Python int.

    Raises:
        TypeError: it is not an int.
        IndexError: it is outside `0 .. length - 1`.
    """
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    number = int(value)  # type: ignore[call-overload]  # is_int has just said so
    if not 0 <= number < length:
        raise IndexError(f"{name} is {number}, expected 0 to {length - 1}")
    return int(number)


def check_bool(name: str, value: object) -> None:
    """Refuse what is not a bool.

    Raises:
        TypeError: it is not.
    """
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a bool, got {describe(value)}")


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Refuse what is not an instance of `kind`.

    Raises:
        TypeError: it is not; the message says what was `expected`.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected}, got {describe(value)}")


def check_dtype(name: str, value: object) -> torch.dtype:
    """Return a torch dtype.

    Raises:
        TypeError: it is not one; the names of dtypes and those of NumPy are none.
    """
    if isinstance(value, torch.dtype):
        return value
    got = describe(value)
    if isinstance(value, np.dtype):
        got = f"NumPy dtype {value.name if value.isnative else value.str}"
    elif isinstance(value, type) and issubclass(value, np.generic):
        got = f"NumPy dtype {value.__name__}"
    raise TypeError(f"{name} must be a supported dtype, got {got}")


def is_kind(value: object, name: str) -> bool:
    """Say whether one of a value's classes has this name, be it an engine's own."""
    return any(cls.__name__ == name for cls in type(value).__mro__)


def check_list(name: str, value: object, length: int | None = None) -> None:
    """Refuse what is not a list, or not one of this length.

    Raises:
        TypeError: it is not a list.
        ValueError: its length is another.
    """
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list, got {get_type_name(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{name} has {len(value)} entries, expected {length}")


def check_ints(
    name: str,
    values: Sequence[Any],
    minimum: int,
    maximum: int,
    error: type[Exception] = ValueError,
) -> npt.NDArray[np.int64]:
    """Return a list of ints as an int64 array.

    Raises:
        TypeError: an entry is not an int.
        Exception: an entry is outside `minimum .. maximum` (the class is `error`).
    """
    # The types of a list are a set of one or two: no Python step for each entry.
    for kind in set(map(type, values)):
        if kind is not int and (not issubclass(kind, int | np.integer) or issubclass(kind, bool)):
            at = next(i for i, value in enumerate(values) if type(value) is kind)
            raise TypeError(f"{name}[{at}] must be an int, got {describe(values[at])}")
    if values and (min(values) < minimum or max(values) > maximum):
        at = next(i for i, v in enumerate(values) if not minimum <= v <= maximum)
        raise error(f"{name}[{at}] is {values[at]}, expected {minimum} to {maximum}")
    return np.array(values, dtype=np.int64)


def check_tensor(
    name: str, value: object, dtype: torch.dtype, ndim: int, device: torch.device | None = None
) -> None:
    """Refuse what is no torch tensor of this dtype and number of dimensions, or not on `device`.

    Raises:
        TypeError: it is not a tensor, or of another dtype.
        ValueError: it has another number of dimensions, or is on another device.
    """
    if (
        type(value) is torch.Tensor
        and value.dtype is dtype
        and value.ndim == ndim
        and value.layout is STRIDED
        and not value.is_nested
        and (device is None or value.device == device)
    ):
        return
    if not isinstance(value, torch.Tensor):
        raise TypeError(not_a_tensor(name, value))
    if value.dtype is not dtype:
        names = get_dtype_name(dtype), get_dtype_name(value.dtype)
        raise TypeError(f"{name} must be {names[0]}, got {names[1]}")
    check_dense(name, value)
    if value.dim() != ndim:
        wanted = f"{ndim} dimension{'s'[ndim == 1 :]}"
        raise ValueError(f"{name} must have {wanted}, got shape {tuple(value.shape)}")
    if device is not None and value.device != device:
        check_same_device([(name, value)], device)


def check_dense(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor that has no strides.

    Raises:
        TypeError: it is sparse or nested, or its layout is a library's own.
    """
    if value.layout is not torch.strided or value.is_nested:
        check_kind(name, value)


def check_kind(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor of a kind whose elements do not lie in memory of its own.

    Raises:
        TypeError: it is sparse, nested, wrapped by `torch.func`, or of a class without memory.
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
    """Return whether a tensor is one of `functionalize`, whose own memory is not initialised."""
    return torch._is_functional_tensor(value)  # noqa: SLF001  (there is no public name)


def _is_wrapped(value: torch.Tensor) -> bool:
    """Return whether a tensor stands for others, as in `torch.vmap` and `functionalize`."""
    functorch: Any = getattr(torch._C, "_functorch", None)  # noqa: SLF001  (there is no public name)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return is_functional(value) or bool(is_wrapped and is_wrapped(value))


def check_array(name: str, value: object, min_length: int = 0) -> None:
    """Refuse what is not a one-dimensional NumPy array of int32 or int64, without a mask.

    Raises:
        TypeError: it is not a NumPy array, or of another dtype.
        ValueError: it has another number of dimensions, or fewer than `min_length` entries.
    """
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        wanted = "a NumPy array" if isinstance(value, torch.Tensor | np.ndarray) else "an array"
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
    if value.dtype not in INT_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {value.dtype}")
    if value.ndim != 1:
        raise ValueError(f"{name} must have 1 dimension, got shape {value.shape}")
    if len(value) < min_length:
        raise ValueError(f"{name} has {len(value)} entries, expected at least {min_length}")


def check_device(name: str, value: object) -> torch.device:
    """Return what names a device as a `torch.device`.

    Raises:
        TypeError: it is neither a text nor a device.
        ValueError: it names none.
    """
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a device, got {value!r} of {type(value).__name__}")
    try:
        return torch.device(value)
    except RuntimeError as error:
        raise ValueError(f"{name} is {value!r}, expected a device such as 'cpu'") from error


def check_host(name: str, value: torch.Tensor) -> None:
    """Refuse a tensor that is not on the CPU.

    Raises:
        ValueError: it is on another device.
    """
    if not value.is_cpu:  # a fifth of the time of reading `device.type`, which is 0.2 us
        raise ValueError(f"{name} must be on the CPU, got {value.device}")


def check_same_device(tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device) -> None:
    """Refuse tensors that are not on `device`.

    Raises:
        ValueError: one is on another.
    """
    for name, tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, expected {device}")


def check_minimum(name: str, values: IntArray, minimum: int) -> None:
    """Refuse an array with an entry below `minimum`.

    Raises:
        ValueError: it has one.
    """
    low = values < minimum
    if low.any():
        at = int(low.argmax())
        raise ValueError(f"{name}[{at}] is {values[at]}, expected at least {minimum}")


def check_starts(name: str, starts: IntArray) -> None:
    """Refuse values that are no query starts: from 0, never decreasing.

    Raises:
        ValueError: they are none.
    """
    if len(starts) == 0:
        raise ValueError(f"{name} is empty, expected num_reqs + 1 entries")
    if starts[0] != 0:
        raise ValueError(f"{name}[0] is {starts[0]}, expected 0")
    falls = starts[1:] < starts[:-1]
    if falls.any():
        at = int(falls.argmax()) + 1
        raise ValueError(f"{name}[{at}] is {starts[at]}, less than {starts[at - 1]} before it")


def check_batch_size(num_reqs: int, num_tokens: int, max_reqs: int, max_tokens: int) -> None:
    """Refuse a batch that is larger than block tables are made for.

    Raises:
        ValueError: it has more requests or more tokens, or not even a first start.
    """
    if num_reqs < 0:
        raise ValueError("query_start_loc is empty, expected num_reqs + 1 entries")
    if num_reqs > max_reqs:
        raise ValueError(f"query_start_loc has {num_reqs} requests, expected at most {max_reqs}")
    if num_tokens > max_tokens:
        raise ValueError(f"positions has {num_tokens} entries, expected at most {max_tokens}")


def check_num_tokens(starts: IntArray, num_positions: int) -> None:
    """Refuse a batch with more tokens than positions.

    Raises:
        ValueError: it is one.
    """
    if starts[-1] > num_positions:
        raise ValueError(
            f"query_start_loc[-1] is {starts[-1]}, but positions has {num_positions} entries"
        )
