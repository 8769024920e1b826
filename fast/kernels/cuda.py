"""Declare kernels, and the functions that they call; `fast.numba_cuda` compiles them.

Until then `cuda` is a placeholder in kernels, so that `import fast` is quick and works without
numba-cuda.
"""

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple, NoReturn

PARAMETER: Final = re.compile(r"u?int(8|16|32|64)(\[(?::, )?::1\])|int64")
"""A parameter in a signature; for an array, the bits of an item and the dimensions."""


class _Undefined:
    """The placeholder for `cuda` in kernels until they are compiled."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cuda.{name} is for compiled kernels")


cuda: Final[Any] = _Undefined()
"""The namespace that kernels import from here, replaced when a kernel is compiled."""


class DeviceFunction:
    """A function that kernels call: `py_func`, as written, and its `name`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func: Any = function
        self.name: str = self.py_func.__name__

    def __call__(self, *_args: object) -> Any:
        """Raise: only compiled kernels can call it."""
        raise TypeError(f"{self.name} is called by kernels only")


class Instruction(NamedTuple):
    """A device function of one load or store, or both, written in the compiler's IR.

    Numba moves elements of an array, 8 bytes at most; this moves up to 16.

    Attributes:
        name: Its name in `fast.numba_cuda.INSTRUCTIONS`.
        size: How many bytes it moves.
    """

    name: str
    size: int

    def __call__(self, *_args: object) -> Any:
        """Raise: only compiled kernels can call it."""
        raise TypeError(f"{self.name} is called by kernels only")


class Array(NamedTuple):
    """A contiguous array parameter of a signature: its dimensions and the bytes of an item."""

    num_dims: int
    item_bytes: int


class Kernel:
    """A kernel for the GPU, compiled at its first launch.

    Attributes:
        py_func: The function as written; its global `cuda` is a placeholder.
        signature: Numba's signature, as text.
        threads: Threads in a block, by default.
        name: Its name.
        loaded: By index of a GPU, the loaded kernel and its `flatten`, for `fast.direct_launch`.
    """

    def __init__(self, function: Callable[..., None], signature: str, threads: int) -> None:
        self.py_func: Any = function
        self.signature = signature
        self.threads = threads
        self.name: str = self.py_func.__name__
        self.loaded: dict[int, Any] = {}

    @cached_property
    def parameters(self) -> tuple[Array | None, ...]:
        """The parameters of the signature: an `Array`, or None for an int64."""
        found = list(PARAMETER.finditer(self.signature))
        if self.signature != f"void({', '.join(one[0] for one in found)})":
            raise ValueError(
                f"{self.name} takes int64 and arrays of 1 or 2 dimensions, not {self.signature}"
            )
        return tuple(
            Array(one[2].count(":") - 1, int(one[1]) // 8) if one[2] else None for one in found
        )


KERNELS: Final[list[Kernel]] = []
"""Every kernel that is declared, once its module is imported."""


def kernel(signature: str, threads: int = 128) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel.

    The body may use the global `cuda`, NumPy's dtypes and device functions only. It must be correct
    for every number of threads in a block.

    Args:
        signature: Numba's signature, such as `"void(int32[::1], int64)"`; scalars are int64.
        threads: Threads in a block.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        declared = Kernel(function, signature, threads)
        KERNELS.append(declared)
        return declared

    return declare


def device_function(function: Callable[..., Any]) -> DeviceFunction:
    """Declare a function that kernels call."""
    return DeviceFunction(function)
