"""One launch of a kernel in the simulator."""

import math
from collections.abc import Sequence

from conformance.simulator.arguments import check_signature, make_arguments
from conformance.simulator.history import Dim3
from conformance.simulator.intrinsics import CudaNamespace
from conformance.simulator.rebinding import Rebinder, plain_function
from conformance.simulator.threads import Machine

_MAX_THREADS = 1024


def simulate(
    kernel: object,
    grid: int | tuple[int, ...],
    threads: int | tuple[int, ...],
    args: Sequence[object],
    *,
    seed: int = 0,
) -> None:
    """Run a numba CUDA kernel's Python source, thread by thread, and check all its accesses.

    The same seed gives the same run, with the same results and the same error.

    Args:
        kernel: A plain function, or an object with a `py_func`: a kernel of `fast` or of numba. In
            its source, and in the device functions that it calls, `cuda` is the simulator's
            namespace and `np` has the simulator's number types. If it has a `signature` in numba's
            notation, the arguments must fit it.
        grid: How many blocks, in up to three dimensions.
        threads: How many threads in each block, in up to three dimensions, 1024 at most.
        args: NumPy arrays, torch tensors on the CPU and numbers, one for each parameter. Arrays
            are read and written in place.
        seed: Decides the order of the blocks, and that of the threads, again after every barrier
            and atomic operation.

    Raises:
        BarrierError: Not all threads reach a barrier, or they reach different
            ones.
        IndexError: An index is negative, or past the end of its array.
        NotImplementedError: The kernel uses a feature that the simulator lacks.
        OverflowError: A value does not fit the type that it is cast to or stored as.
        RaceError: Two threads access an element without synchronisation, and at least one stores
            to it.
        TypeError: The kernel is not a kernel, or an argument is of the wrong type.
        UninitializedReadError: Shared or local memory is read before it was written.
        ValueError: CUDA does not allow the size of the grid or of the block, or a read-only array
            is stored to.
        Exception: Any other exception of the kernel. The messages of exceptions in the kernel start
            with the kernel, the block and the thread.

    Example:
        >>> import numpy as np
        >>> cuda = None  # numba's, where it is installed; the simulator puts its own in its place
        >>> def add_one(x):
        ...     i = cuda.grid(1)
        ...     if i < x.size:
        ...         x[i] += 1
        >>> x = np.arange(5)
        >>> simulate(add_one, grid=3, threads=2, args=(x,))
        >>> x
        array([1, 2, 3, 4, 5])
        >>> simulate(add_one, grid=1, threads=1, args=(np.array([127], np.int8),))
        Traceback (most recent call last):
        OverflowError: kernel add_one, block (0, 0, 0), thread (0, 0, 0): x[0] = 128 does not fit \
int8 (-128..127)

    Source: the definition is kvtwin's own; the semantics of `cuda` are numba's.
    """
    function = plain_function(kernel)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    machine = Machine(function.__name__, _as_dim3("grid", grid), _as_dim3("threads", threads), seed)
    if math.prod(machine.threads) > _MAX_THREADS:
        raise ValueError(f"threads is {threads}, but a block has at most {_MAX_THREADS}")
    try:
        made = make_arguments(names, args, machine.clock)
        check_signature(getattr(kernel, "signature", None), names, made)
    except (NotImplementedError, TypeError) as error:
        raise type(error)(f"kernel {machine.name}: {error}") from None
    machine.run(Rebinder(CudaNamespace(machine)).rebind(function), made)


def _as_dim3(name: str, size: int | tuple[int, ...]) -> Dim3:
    """Return a size in three dimensions."""
    sizes = size if isinstance(size, tuple) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} is {size}, but must have 1 to 3 dimensions")
    if min(sizes) < 1:
        raise ValueError(f"{name} is {size}, but must be at least 1 in each dimension")
    return Dim3(*sizes, *(1,) * (3 - len(sizes)))
