"""Check arguments: one `check_*` for each kind of input.

Each raises TypeError for a wrong type or dtype and ValueError for a wrong value, unless its
docstring says otherwise. Checks that cost O(1), and those of Python lists, are always made; checks
that read the values of a tensor are for checked mode (`fast.checked_mode`).
"""

from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

IntArray: TypeAlias = npt.NDArray[np.integer[Any]]

INT32: Final = torch.int32  # the lookup takes 0.05 us less
INT64: Final = torch.int64
STRIDED: Final = torch.strided
INT_DTYPES: Final = (np.dtype(np.int32), np.dtype(np.int64))

PLAIN_CLASSES: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of tensors with memory of their own, except special kinds such as sparse."""

MAX_SIZE: Final = 2**31 - 1
"""The greatest size: the greatest int32."""


def describe(value: object) -> str:
    """Return a value and its type in words that are the same for both twins."""
    kind = type(value)
    if isinstance(value, torch.Tensor | np.ndarray):
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
    return "array" if isinstance(value, torch.Tensor | np.ndarray) else type(value).__name__


def get_dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype that both twins have, such as `int32`."""
    return str(dtype).removeprefix("torch.")


def not_a_tensor(name: str, value: object) -> str:
    """Return the message for a value that is not a tensor, such as a NumPy array."""
    wanted = "a torch tensor" if isinstance(value, np.ndarray) else "an array"
    return f"{name} must be {wanted}, got {type(value).__name__}"


def is_int(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer, and not a bool."""
    return type(value) is int or (
        isinstance(value, int | np.integer) and not isinstance(value, bool)
    )


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
    if not is_int(value):
        raise TypeError(f"{name} must be an int, got {describe(value)}")
    number = int(value)  # type: ignore[call-overload]  # is_int has just said so
    if not 0 <= number < length:
        raise IndexError(f"{name} is {number}, expected 0 to {length - 1}")
    return int(number)


def check_bool(name: str, value: object) -> None:
    """Check that a value is a bool."""
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a bool, got {describe(value)}")


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Check that a value is an instance of `kind`; the message says what was `expected`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected}, got {describe(value)}")


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


def is_kind(value: object, name: str) -> bool:
    """Return whether one of a value's classes has this name; it may be an engine's own class."""
    return any(cls.__name__ == name for cls in type(value).__mro__)


def check_list(name: str, value: object, length: int | None = None) -> None:
    """Check that a value is a list, of the given length if there is one."""
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


def check_tensor(
    name: str, value: object, dtype: torch.dtype, ndim: int, device: torch.device | None = None
) -> None:
    """Check that a value is a tensor with this dtype and number of dimensions, on `device`."""
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
    """Raise TypeError for a tensor without strides: sparse, nested, or with a library's layout."""
    if value.layout is not torch.strided or value.is_nested:
        check_kind(name, value)


def check_kind(name: str, value: torch.Tensor) -> None:
    """Raise TypeError for a tensor whose elements are not in memory of its own.

    Such a tensor is sparse, nested, wrapped by `torch.func`, or of a class without memory.
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


def check_array(name: str, value: object, min_length: int = 0) -> None:
    """Check that a value is an int32 or int64 vector of NumPy, without a mask and long enough."""
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
    """Return a device, or the name of one, as a `torch.device`; torch must have it here."""
    if not isinstance(value, str | torch.device):
        raise TypeError(f"{name} must be a device, got {value!r} of {type(value).__name__}")
    try:
        device = torch.device(value)
        torch.empty(0, device=device)  # torch knows the names of devices that it lacks
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"{name} is {value!r}, expected a device that torch has here") from error
    return device


def check_host(name: str, value: torch.Tensor) -> None:
    """Check that a tensor is on the CPU."""
    if not value.is_cpu:  # a fifth of the time of reading `device.type`, which is 0.2 us
        raise ValueError(f"{name} must be on the CPU, got {value.device}")


def check_same_device(tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device) -> None:
    """Check that all tensors are on `device`."""
    for name, tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, expected {device}")


def check_minimum(name: str, values: IntArray, minimum: int) -> None:
    """Check that no entry of an array is below `minimum`."""
    low = values < minimum
    if low.any():
        at = int(low.argmax())
        raise ValueError(f"{name}[{at}] is {values[at]}, expected at least {minimum}")


def check_starts(name: str, starts: IntArray) -> None:
    """Check that query starts begin at 0 and do not decrease."""
    if len(starts) == 0:
        raise ValueError(f"{name} is empty, expected num_reqs + 1 entries")
    if starts[0] != 0:
        raise ValueError(f"{name}[0] is {starts[0]}, expected 0")
    falls = starts[1:] < starts[:-1]
    if falls.any():
        at = int(falls.argmax()) + 1
        raise ValueError(f"{name}[{at}] is {starts[at]}, less than {starts[at - 1]} before it")


def check_batch_size(num_reqs: int, num_tokens: int, max_reqs: int, max_tokens: int) -> None:
    """Check that a batch fits into the block tables, and that there is a first start."""
    if num_reqs < 0:
        raise ValueError("query_start_loc is empty, expected num_reqs + 1 entries")
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
