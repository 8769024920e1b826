"""How kernels are declared and compiled; the one module that imports numba's `cuda`.

It does so only when a kernel is launched on a GPU (or compiled by hand): until then the names in
kernels stand for nothing, so that `fast` imports in no time, and without numba-cuda.
"""

import types
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NoReturn

INSTALL: Final = "kernels need numba-cuda: pip install kvtwin[cuda]"


class _Undefined:
    """What kernels call `cuda` until they are compiled or simulated."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cuda.{name} is for kernels, compiled or simulated")


cuda: Final[Any] = _Undefined()
"""The namespace that kernels import from here. Who runs one puts the real thing in its place."""


class DeviceFunction:
    """A function that kernels call.

    Attributes:
        py_func: the function as it is written.
        name: its name.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func: Any = function
        self.name: str = self.py_func.__name__

    def __call__(self, *_args: object) -> Any:  # noqa: ANN401  (its result is the kernel's affair)
        """Refuse: kernels call it, once they are compiled or simulated."""
        raise TypeError(f"{self.name} is called by kernels only")

    def for_numba(self) -> Any:  # noqa: ANN401  (numba is untyped)
        """Return the function as kernels that numba compiles call it.

        Raises:
            ImportError: numba-cuda is not installed.
        """
        return import_cuda().jit(device=True)(_bind(self.py_func))


class Instruction(DeviceFunction):
    """A device function that is one load or store, or both, of up to 16 bytes.

    Numba moves elements of an array, 8 bytes at most; what moves more is said to its compiler in
    the compiler's own words. The function in Python says what that does, byte by byte, and is what
    a simulator runs.

    Attributes:
        py_func: the function as it is written.
        name: its name.

    Args:
        function: the function as it is written.
        make: called with numba's `intrinsic` decorator, returns the function for numba.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[[Any], Any]) -> None:
        super().__init__(function)
        self._make = make

    def for_numba(self) -> Any:  # noqa: ANN401  (numba is untyped)
        """Return the function as kernels that numba compiles call it.

        Raises:
            ImportError: numba-cuda is not installed.
        """
        import_cuda()
        from numba.cuda.extending import intrinsic  # noqa: PLC0415  (numba takes 0.3 s to import)

        return self._make(intrinsic)


class Kernel:
    """A kernel for the GPU, not compiled before its first launch.

    Attributes:
        py_func: the function as it is written; its global `cuda` is a placeholder.
        signature: numba's signature, as text.
        threads: threads in a block, when nothing else is asked for.
        name: its name.
    """

    def __init__(self, function: Callable[..., None], signature: str, threads: int) -> None:
        self.py_func: Any = function
        self.signature = signature
        self.threads = threads
        self.name: str = self.py_func.__name__
        self._loaded: dict[int, Any] = {}

    def for_numba(self) -> Any:  # noqa: ANN401  (what numba takes is a function)
        """Return the kernel as numba compiles it: with numba's `cuda` where it says `cuda`.

        Raises:
            ImportError: numba-cuda is not installed.
        """
        return _bind(self.py_func)

    def compile_ptx(self, compute_capability: tuple[int, int]) -> tuple[str, str]:
        """Compile the kernel; no GPU is needed where numba can be told of one.

        Returns:
            The PTX, and the name of the entry in it.

        Raises:
            ImportError: numba-cuda is not installed.
        """
        ptx, _ = import_cuda().compile_ptx(self.for_numba(), self.signature, cc=compute_capability)
        entry = next(line for line in ptx.splitlines() if ".entry" in line)
        return ptx, entry.split()[-1].rstrip("(")

    def loaded(self, device_index: int) -> Any:  # noqa: ANN401  (cuda.core is untyped)
        """Return the kernel for a GPU, compiled and loaded when first asked for.

        Raises:
            ImportError: numba-cuda is not installed.
        """
        if device_index not in self._loaded:
            import_cuda()  # a clear error, before cuda.core's
            from cuda.core import (  # noqa: PLC0415  (there only with numba-cuda)
                Device,
                Linker,
                LinkerOptions,
                ObjectCode,
            )

            device = Device(device_index)
            device.set_current()
            capability = device.compute_capability
            ptx, entry = self.compile_ptx((capability.major, capability.minor))
            # Linked by the toolkit: a driver may be too old to assemble the compiler's PTX.
            options = LinkerOptions(arch=f"sm_{capability.major}{capability.minor}")
            cubin = Linker(ObjectCode.from_ptx(ptx.encode()), options=options).link("cubin")
            self._loaded[device_index] = cubin.get_kernel(entry)
        return self._loaded[device_index]


KERNELS: Final[list[Kernel]] = []
"""Every kernel that is declared, once its module is imported."""


def kernel(signature: str, threads: int = 128) -> Callable[[Callable[..., None]], Kernel]:
    """Declare a kernel.

    The body refers to the global `cuda`, to NumPy's dtypes and to device functions only. It must be
    right for every number of threads in a block.

    Args:
        signature: numba's signature, such as `"void(int32[::1], int64)"`; scalars are int64.
        threads: threads in a block.
    """

    def declare(function: Callable[..., None]) -> Kernel:
        declared = Kernel(function, signature, threads)
        KERNELS.append(declared)
        return declared

    return declare


def device_function(function: Callable[..., Any]) -> DeviceFunction:
    """Declare a function that kernels call."""
    return DeviceFunction(function)


@cache
def import_cuda() -> Any:  # noqa: ANN401  (numba is untyped)
    """Import numba-cuda's `cuda`.

    Raises:
        ImportError: it is not installed. (numba's own `cuda`, which is deprecated, does not count.)
    """
    try:
        import numba_cuda  # noqa: F401, PLC0415  (whether it is there is what is asked)
        from numba import cuda as real  # noqa: PLC0415  (numba takes 0.3 s to import)
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return real


def _bind(function: Any) -> Any:  # noqa: ANN401  (a function is rebuilt from its parts)
    """Copy a function, with numba's `cuda` and compiled device functions among its globals."""
    real = import_cuda()
    names = dict(function.__globals__)
    for name in function.__code__.co_names:
        value = names.get(name)
        if value is cuda:
            names[name] = real
        elif isinstance(value, DeviceFunction):
            names[name] = value.for_numba()
    return types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
