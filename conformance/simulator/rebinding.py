"""Rebinds a kernel's function to the simulator's namespaces, in place of numba's and NumPy's."""

import itertools
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

from conformance.simulator.memory import CheckedArray
from conformance.simulator.scalars import Namespace, NumpyNamespace, as_cast, as_number


def plain_function(kernel: object) -> FunctionType:
    """Return the Python function of a kernel: its `py_func`, or the kernel itself.

    Raises:
        TypeError: The kernel is not a function and has no `py_func`.
    """
    function = getattr(kernel, "py_func", kernel)
    if not isinstance(function, FunctionType):
        raise TypeError(f"a kernel is a function or has a py_func; got {type(kernel).__name__}")
    return function


class Rebinder:
    """Copies functions, and replaces their globals and closure variables by the simulator's.

    The name `cuda` is bound to the simulator's namespace, whatever it was bound to. NumPy, its
    scalar types and numba's types are replaced by checked ones. Device functions (any object with a
    `py_func`) and plain functions are copied likewise. Other values and the originals stay as is.

    Args:
        cuda: The namespace to which `cuda` is bound.
    """

    def __init__(self, cuda: Namespace) -> None:
        self._cuda = cuda
        self._numpy = NumpyNamespace()
        self._copies: dict[FunctionType, FunctionType] = {}

    def rebind(self, function: FunctionType) -> FunctionType:
        """Return the function's copy, for this launch.

        Raises:
            NotImplementedError: It refers to an array, which compiled kernels embed as a constant.
        """
        if function in self._copies:
            return self._copies[function]
        names = dict(function.__globals__)
        cells = tuple(CellType() for _ in function.__code__.co_freevars)
        copy = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, cells
        )
        self._copies[function] = copy  # before the names, since a function may be recursive
        for name in _names(function.__code__) & names.keys():
            names[name] = self._rebind_value(name, names[name])
        outer = zip(function.__code__.co_freevars, function.__closure__ or (), cells, strict=True)
        for name, original, cell in outer:
            cell.cell_contents = self._rebind_value(name, original.cell_contents)
        return copy

    def _rebind_value(self, name: str, value: object) -> object:
        """Return the value to which the simulator binds a name of a kernel."""
        if name == "cuda":
            return self._cuda
        if hasattr(value, "py_func") or isinstance(value, FunctionType):
            copy = self.rebind(plain_function(value))
            return _aligned(copy, value.size) if hasattr(value, "size") else copy
        if isinstance(value, np.ndarray):
            raise NotImplementedError(f"the simulator has no constant arrays, but {name} is one")
        return self._numpy if value is np else _as_checked(value)


def _aligned(instruction: Callable[..., Any], size: int) -> Callable[..., Any]:
    """Wrap an instruction that moves `size` bytes: addresses must be multiples of that.

    Its arguments are pairs of an array and an index, and possibly a number to store.
    """

    def move(*arguments: Any) -> Any:  # instructions differ in their parameters
        for array, index in itertools.pairwise(arguments):
            if isinstance(array, CheckedArray) and array.address_of(index) % size:
                raise ValueError(f"{array.name}[{index}] is not aligned to {size} bytes")
        return instruction(*arguments)

    return move


def _as_checked(value: object) -> object:
    """Replace a number or number type of NumPy or numba by the simulator's; return others as is."""
    if isinstance(value, np.generic):
        return as_number(value)
    is_numpy_type = isinstance(value, type) and issubclass(value, np.generic)
    is_numba_type = type(value).__module__.startswith("numba.") and hasattr(value, "bitwidth")
    return as_cast(value) if is_numpy_type or is_numba_type else value


def _names(code: CodeType) -> set[str]:
    """Return the global names that a function, or one inside it, may refer to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))
