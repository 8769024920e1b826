"""Declare and compile kernels; the only module that imports numba's `cuda`.

It imports `cuda` only when a kernel is launched on a GPU (or compiled explicitly): until then it is
a placeholder in kernels, so that `import fast` is quick and works without numba-cuda.

A successor of numba-cuda with the same kernel language, such as numba-cuda-mlir, can be swapped in
here: in `import_cuda`, whose `jit`, `compile_ptx`, `gpus`, `external_stream` and `as_cuda_array`
are used in addition to what kernels use; in `import_intrinsic`, for moves of 16 bytes; and in
`array_members`, which says how its kernels take an array. If that differs from numba-cuda, or until
its name is in `fast.direct_launch.TESTED`, its own dispatcher launches the kernels
(`fast.numba_launch`).
"""

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple, NoReturn

INSTALL: Final = "kernels need numba-cuda: pip install kvtwin[cuda]"
TOOLKIT: Final = "kernels need a CUDA toolkit's compiler: set CUDA_HOME to the toolkit's folder"
PARAMETER: Final = re.compile(r"u?int(8|16|32|64)(\[(?::, )?::1\])|int64")
"""A parameter in a signature; for an array, the bits of an item and the dimensions."""


class _Undefined:
    """The placeholder for `cuda` in kernels until they are compiled or simulated."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"cuda.{name} is for kernels, compiled or simulated")


cuda: Final[Any] = _Undefined()
"""The namespace that kernels import from here, replaced when a kernel is compiled or simulated."""


class DeviceFunction:
    """A function that kernels call: `py_func`, as written, and its `name`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func: Any = function
        self.name: str = self.py_func.__name__

    def __call__(self, *_args: object) -> Any:  # noqa: ANN401  (its result is the kernel's affair)
        """Raise: only compiled or simulated kernels can call it."""
        raise TypeError(f"{self.name} is called by kernels only")

    def for_numba(self) -> Any:  # noqa: ANN401  (numba is untyped)
        """Return the function as kernels that numba compiles call it."""
        return import_cuda().jit(device=True)(_bind(self.py_func))


class Instruction(DeviceFunction):
    """A device function that is one load or store, or both, of up to 16 bytes.

    Numba moves elements of an array, 8 bytes at most; larger moves are written in the compiler's
    IR. The Python function does the same byte by byte, for a simulator.

    Attributes:
        make: Called with numba's `intrinsic` decorator, returns the function for numba.

    Args:
        function: The Python function.
        make: That attribute.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[[Any], Any]) -> None:
        super().__init__(function)
        self.make = make

    def for_numba(self) -> Any:  # noqa: ANN401  (numba is untyped)
        """Return the function as kernels that numba compiles call it."""
        return self.make(import_intrinsic())


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
        loaded: For GPUs by index, what `fast.direct_launch` launches on them.
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

    def for_numba(self) -> Any:  # noqa: ANN401  (what numba takes is a function)
        """Return the kernel as numba compiles it, with numba's `cuda` as its global `cuda`."""
        return _bind(self.py_func)

    def compile_ptx(
        self, compute_capability: tuple[int, int], *, lineinfo: bool = False
    ) -> tuple[str, str]:
        """Compile the kernel without a GPU; return the PTX, and the name of the entry in it.

        With `lineinfo` the PTX names the lines of the source that instructions come from.
        """
        cuda = import_cuda()
        with compiling():
            ptx, _ = cuda.compile_ptx(
                self.for_numba(), self.signature, cc=compute_capability, lineinfo=lineinfo
            )
        entry = next(line for line in ptx.splitlines() if ".entry" in line)
        return ptx, entry.split()[-1].rstrip("(")


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


def is_installed() -> bool:
    """Return whether numba-cuda can be imported."""
    return importlib.util.find_spec("numba_cuda") is not None


@cache
def import_cuda() -> Any:  # noqa: ANN401  (numba is untyped)
    """Import numba-cuda's `cuda`, not numba's own deprecated one; or raise ImportError."""
    # Puts numba-cuda in the place of numba's own `cuda`. A .pth file of numba-cuda does it when
    # Python starts, but not from a folder of PYTHONPATH, where Python reads no .pth files.
    with suppress(ModuleNotFoundError):
        importlib.import_module("_numba_cuda_redirector")
    try:
        import numba_cuda  # noqa: PLC0415  (numba takes 0.3 s to import)
        from numba import cuda as real  # noqa: PLC0415  (likewise)
    except ImportError as error:
        raise ImportError(f"{INSTALL} ({error})") from error
    folder = Path(numba_cuda.__file__).resolve().parent
    if folder not in Path(real.__file__).resolve().parents:
        raise ImportError(
            f"numba.cuda is {real.__file__}, expected that of numba-cuda in {folder}: import"
            " _numba_cuda_redirector before numba.cuda"
        )
    return real


@contextmanager
def compiling() -> Iterator[None]:
    """Explain what to set if numba-cuda finds no compiler (NVVM, libdevice) while it compiles.

    It searches the installed packages and `CUDA_HOME`. It does not guess that folder if another
    library of the toolkit is installed as a package, as with torch's wheels.
    """
    try:
        yield
    except RuntimeError as error:
        # By name: cuda.pathfinder is there only where numba-cuda is.
        if all(kind.__name__ != "DynamicLibNotFoundError" for kind in type(error).__mro__):
            raise
        raise ImportError(f"{TOOLKIT} ({error})") from error


def import_intrinsic() -> Any:  # noqa: ANN401  (numba is untyped)
    """Import numba-cuda's `intrinsic`, which makes functions from its compiler's IR."""
    import_cuda()
    from numba.cuda.extending import intrinsic  # noqa: PLC0415  (numba takes 0.3 s to import)

    return intrinsic


def array_members(array: Array) -> tuple[str, ...]:
    """Return what a compiled kernel takes for an array, member by member in order.

    Raises ImportError or AttributeError if this version of numba-cuda does not tell.
    """
    import_cuda()
    types: Any = importlib.import_module("numba.cuda.types")
    target: Any = importlib.import_module("numba.cuda.descriptor").cuda_target
    item = getattr(types, f"int{8 * array.item_bytes}")
    model = target.target_context.data_model_manager[types.Array(item, array.num_dims, "C")]
    return tuple(model._fields)  # numba says so nowhere else


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
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
