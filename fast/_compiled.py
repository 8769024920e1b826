"""Loops that are compiled when first called, not when `fast` is imported."""

import types
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

from fast._checks import is_checked

P = ParamSpec("P")
R = TypeVar("R")

Int32s: TypeAlias = Any
"""An int32 array in a compiled loop or a kernel. Its elements are the compiler's ints, not NumPy's
or Python's: no checker of types knows them."""

Int64s: TypeAlias = Any
"""An int64 array in a compiled loop or a kernel."""


class Compiled(Generic[P, R]):
    """A Python function that numba compiles for one signature when it is first called.

    In checked mode a second machine code runs, which raises `IndexError` where the first would
    write past the end of an array: a mistake in a loop is an exception there, not a crash.

    Attributes:
        py_func: the function as it is written.
        signature: numba's signature, as text.
    """

    def __init__(self, function: Callable[P, R], signature: str) -> None:
        self.py_func = function
        self.signature = signature
        self._machine_code: Callable[P, R] | None = None
        self._bounds_checked: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the compiled function."""
        if self._machine_code is not None and not is_checked():
            return self._machine_code(*args, **kwargs)
        if not is_checked():
            self._machine_code = self._compile(self.py_func)
            return self._machine_code(*args, **kwargs)
        if self._bounds_checked is None:
            self._bounds_checked = self._compile(_renamed(self.py_func), boundscheck=True)
        return self._bounds_checked(*args, **kwargs)

    def warm_up(self) -> None:
        """Compile the function now, if it is not yet."""
        if self._machine_code is None:
            self._machine_code = self._compile(self.py_func)

    def _compile(self, function: Callable[P, R], **options: bool) -> Callable[P, R]:
        """Compile a function, or load it from numba's cache on disk."""
        from numba import njit  # noqa: PLC0415  (numba takes 0.3 s to import)

        # One explicit signature for each function: processes that share the cache agree on it.
        settings: dict[str, Any] = {"error_model": "numpy", "nogil": True, **options}
        try:
            return njit(self.signature, cache=True, **settings)(function)
        except RuntimeError as error:  # no folder of the cache can be written to
            if "cannot cache" not in str(error):
                raise
            return njit(self.signature, **settings)(function)


def _renamed(function: Callable[P, R]) -> Callable[P, R]:
    """Return a copy under another name: numba's cache knows functions by name, not by option."""
    whole: Any = function
    copy = types.FunctionType(whole.__code__, whole.__globals__, f"{whole.__name__}_bounds_checked")
    copy.__qualname__ = copy.__name__
    copy.__module__ = whole.__module__
    return copy


COMPILED: Final[list[Compiled[Any, Any]]] = []
"""Every compiled loop of the package."""


def compiled(signature: str) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Declare a loop that is compiled for one signature when it is first called.

    Array arguments that a caller may pass strided are declared `[:]` (any layout), scratch `[::1]`.
    The body may call nothing but NumPy and builtins, so that it can be cached on its own.

    Args:
        signature: numba's signature, such as `"int64(int32[:], int64)"`.
    """

    def declare(function: Callable[P, R]) -> Compiled[P, R]:
        loop = Compiled(function, signature)
        COMPILED.append(loop)
        return loop

    return declare


def compile_loops() -> None:
    """Compile every loop that is not yet."""
    for loop in COMPILED:
        loop.warm_up()
