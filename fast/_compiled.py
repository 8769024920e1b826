"""Loops that are compiled when first called, not when `fast` is imported."""

from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Int32s: TypeAlias = Any
"""An int32 array in a compiled loop or a kernel. Its elements are the compiler's ints, not NumPy's
or Python's: no checker of types knows them."""

Int64s: TypeAlias = Any
"""An int64 array in a compiled loop or a kernel."""


class Compiled(Generic[P, R]):
    """A Python function that numba compiles for one signature when it is first called.

    Attributes:
        py_func: the function as it is written.
        signature: numba's signature, as text.
    """

    def __init__(self, function: Callable[P, R], signature: str) -> None:
        self.py_func = function
        self.signature = signature
        self._machine_code: Callable[P, R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the compiled function."""
        if self._machine_code is None:
            self._machine_code = self._compile()
        return self._machine_code(*args, **kwargs)

    def warm_up(self) -> None:
        """Compile the function now, if it is not yet."""
        if self._machine_code is None:
            self._machine_code = self._compile()

    def _compile(self) -> Callable[P, R]:
        """Compile the function, or load it from numba's cache on disk."""
        from numba import njit  # noqa: PLC0415  (numba takes 0.3 s to import)

        # One explicit signature for each function: processes that share the cache agree on it.
        options: dict[str, Any] = {"error_model": "numpy", "nogil": True}
        try:
            return njit(self.signature, cache=True, **options)(self.py_func)
        except RuntimeError as error:  # no folder of the cache can be written to
            if "cannot cache" not in str(error):
                raise
            return njit(self.signature, **options)(self.py_func)


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
