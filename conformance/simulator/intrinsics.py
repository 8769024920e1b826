"""The `cuda` namespace that replaces numba's in a simulated kernel.

Its attributes behave as numba documents them; any other attribute raises `NotImplementedError`.
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from conformance.simulator.atomics import Atomics
from conformance.simulator.errors import BarrierError
from conformance.simulator.history import WARP_SIZE, Dim3, History
from conformance.simulator.memory import CheckedArray
from conformance.simulator.scalars import Namespace, as_cast
from conformance.simulator.threads import BarrierWait, Machine, Site, WarpWait

_ALL_LANES = 2**WARP_SIZE - 1


def _site(depth: int) -> Site:
    """Return the call in the kernel's source, `depth` frames above the caller."""
    frame = sys._getframe(depth + 1)  # noqa: SLF001  # the only way to distinguish calls
    code = frame.f_code
    return Site(code.co_filename, code.co_qualname, frame.f_lineno, frame.f_lasti)


class _Arrays(Namespace):
    """`cuda.shared`, with an array for each call in the source and each block; or `cuda.local`."""

    def __init__(self, machine: Machine, kind: str) -> None:
        self._machine = machine
        self._kind = kind
        self._title = f"cuda.{kind}"

    def array(
        self, shape: int | tuple[int, ...], dtype: object, alignment: int | None = None
    ) -> CheckedArray:
        """Return the array of this call; its elements must be stored before they are read."""
        del alignment  # it has no effect here
        site = _site(1)
        if self._kind == "local":
            return self._blank(site, shape, dtype)
        if shape == 0:
            raise NotImplementedError("the simulator has no dynamic shared memory (shape 0)")
        arrays = self._machine.thread.block.shared
        if site not in arrays:
            arrays[site] = self._blank(site, shape, dtype)
        return arrays[site]

    def _blank(self, site: Site, shape: int | tuple[int, ...], dtype: object) -> CheckedArray:
        data = np.zeros(shape, as_cast(dtype).dtype)
        name = f"{self._kind} array ({site})"
        return CheckedArray(name, data, History(), self._machine.clock, is_uninitialized=True)


class CudaNamespace(Namespace):
    """`cuda`, for the kernels of one launch."""

    _title = "cuda"
    warpsize = WARP_SIZE

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.atomic = Atomics(machine)
        self.shared = _Arrays(machine, "shared")
        self.local = _Arrays(machine, "local")
        self.blockDim = machine.threads
        self.gridDim = machine.grid

    # Indices of a thread, and sizes of the grid.

    @property
    def threadIdx(self) -> Dim3:  # noqa: N802  # CUDA's name
        """The thread's index in its block."""
        return self._machine.thread.index

    @property
    def blockIdx(self) -> Dim3:  # noqa: N802  # CUDA's name
        """The block's index in the grid."""
        return self._machine.thread.block.index

    @property
    def laneid(self) -> int:
        """The thread's lane in its warp."""
        return self._machine.thread.lane

    def grid(self, ndim: int) -> int | tuple[int, ...]:
        """Return the thread's index in the grid: an int for one dimension, else a tuple."""
        thread = self._machine.thread
        if ndim == 1:  # the usual case
            return thread.block.index.x * self.blockDim.x + thread.index.x
        axes = zip(thread.block.index, self.blockDim, thread.index, strict=True)
        return _of_dimensions(ndim, [block * size + index for block, size, index in axes])

    def gridsize(self, ndim: int) -> int | tuple[int, ...]:
        """Return how many threads the grid has: an int for one dimension, else a tuple."""
        axes = zip(self.gridDim, self.blockDim, strict=True)
        return _of_dimensions(ndim, [blocks * threads for blocks, threads in axes])

    # Barriers of the block.

    def _synchronize(self, value: object = None) -> Iterable[Any]:
        """Wait for all threads of the block, and return the values that they passed."""
        return self._machine.thread.wait(BarrierWait(_site(2), value)).values()

    def syncthreads(self) -> None:
        """Wait for all threads of the block."""
        self._synchronize()

    def syncthreads_count(self, predicate: int) -> int:
        """Wait for all threads of the block, and return for how many the predicate holds."""
        return sum(map(bool, self._synchronize(predicate)))

    def threadfence(self) -> None:
        """Do nothing: a fence alone orders no accesses (see `history`)."""

    # The barrier of the warp.

    def syncwarp(self, mask: int = _ALL_LANES) -> None:
        """Wait for the lanes; their earlier accesses are ordered before their later ones."""
        if not 0 <= mask <= _ALL_LANES or not mask >> self.laneid & 1:
            raise BarrierError(
                f"cuda.syncwarp with mask 0x{mask:08x}, which must have 32 bits "
                f"and include the calling lane, {self.laneid}"
            )
        self._machine.thread.wait(WarpWait(mask))


def _of_dimensions(ndim: int, sizes: list[int]) -> int | tuple[int, ...]:
    """Return the first `ndim` sizes, as numba's grid functions do."""
    if ndim not in (1, 2, 3):
        raise ValueError(f"a grid has 1, 2 or 3 dimensions, not {ndim}")
    return sizes[0] if ndim == 1 else tuple(sizes[:ndim])
