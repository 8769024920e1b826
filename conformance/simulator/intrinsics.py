"""The `cuda` namespace that replaces numba's in a simulated kernel.

Its attributes behave as numba documents them; any other attribute raises `NotImplementedError`.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from conformance.simulator.atomics import Atomics
from conformance.simulator.errors import BarrierError, UninitializedReadError
from conformance.simulator.history import WARP_SIZE, Dim3, History
from conformance.simulator.memory import CheckedArray
from conformance.simulator.scalars import Int32, Namespace, Number, Unsigned, as_cast
from conformance.simulator.threads import BarrierWait, Machine, Site, WarpWait

_ALL_LANES = 2**WARP_SIZE - 1
_T = TypeVar("_T")


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

    def lanemask_lt(self) -> int:
        """Return a mask of the lanes below the thread's own."""
        return Unsigned((1 << self.laneid) - 1)

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

    def syncthreads_and(self, predicate: int) -> int:
        """Wait for all threads of the block, and return 1 if the predicate holds for all."""
        return int(all(self._synchronize(predicate)))

    def syncthreads_or(self, predicate: int) -> int:
        """Wait for all threads of the block, and return 1 if the predicate holds for any."""
        return int(any(self._synchronize(predicate)))

    def threadfence(self) -> None:
        """Do nothing: a fence alone orders no accesses (see `history`)."""

    threadfence_block = threadfence
    threadfence_system = threadfence

    def nanosleep(self, nanoseconds: int) -> None:
        """Let other threads run."""
        del nanoseconds  # time does not pass here
        self._machine.thread.wait(None)

    # Operations of the warp.

    def _meet(self, operation: str, mask: int, value: _T) -> dict[int, _T]:
        """Wait for the lanes in a mask, and return the values that they passed."""
        if mask < 0:
            mask += 2**WARP_SIZE  # a signed 32-bit number, as ballots return
        if not 0 <= mask <= _ALL_LANES or not mask >> self.laneid & 1:
            raise BarrierError(
                f"cuda.{operation} with mask 0x{mask:08x}, which must have 32 bits "
                f"and include the calling lane, {self.laneid}"
            )
        return self._machine.thread.wait(WarpWait(operation, mask, value))

    def syncwarp(self, mask: int = _ALL_LANES) -> None:
        """Wait for the lanes; their earlier accesses are ordered before their later ones."""
        self._meet("syncwarp", mask, None)

    def shfl_sync(self, mask: int, value: _T, src_lane: int) -> _T:
        """Return the value of a lane, modulo 32."""
        return _of_lane(self._meet("shfl_sync", mask, value), src_lane % WARP_SIZE)

    def shfl_up_sync(self, mask: int, value: _T, delta: int) -> _T:
        """Return the value of the lane `delta` below; the thread's own if there is none."""
        values = self._meet("shfl_up_sync", mask, value)
        lane = self.laneid - delta
        return _of_lane(values, lane) if lane >= 0 else value

    def shfl_down_sync(self, mask: int, value: _T, delta: int) -> _T:
        """Return the value of the lane `delta` above; the thread's own if there is none."""
        values = self._meet("shfl_down_sync", mask, value)
        lane = self.laneid + delta
        return _of_lane(values, lane) if lane < WARP_SIZE else value

    def shfl_xor_sync(self, mask: int, value: _T, lane_mask: int) -> _T:
        """Return the value of the lane whose number differs in these bits."""
        return _of_lane(self._meet("shfl_xor_sync", mask, value), self.laneid ^ lane_mask)

    def ballot_sync(self, mask: int, predicate: object) -> int:
        """Return a mask of the lanes for which the predicate holds, as a signed 32-bit number."""
        return _as_mask(self._meet("ballot_sync", mask, predicate), bool)

    def any_sync(self, mask: int, predicate: object) -> bool:
        """Return whether the predicate holds for any lane."""
        return any(self._meet("any_sync", mask, predicate).values())

    def all_sync(self, mask: int, predicate: object) -> bool:
        """Return whether the predicate holds for all lanes."""
        return all(self._meet("all_sync", mask, predicate).values())

    def eq_sync(self, mask: int, predicate: object) -> bool:
        """Return whether the predicate is the same for all lanes."""
        return len(set(map(bool, self._meet("eq_sync", mask, predicate).values()))) == 1

    def match_any_sync(self, mask: int, value: Number) -> int:
        """Return a mask of the lanes that passed the same value, as a signed 32-bit number."""
        return _as_mask(self._meet("match_any_sync", mask, value), lambda other: other == value)

    def match_all_sync(self, mask: int, value: Number) -> tuple[int, bool]:
        """Return the mask of the lanes and True if all passed the same value, else 0 and False."""
        values = self._meet("match_all_sync", mask, value)
        if len(set(values.values())) > 1:
            return Int32(0), False
        return _as_mask(values, lambda _: True), True

    # Arithmetic and accesses with hints.

    def popc(self, number: int) -> int:
        """Return how many bits are set."""
        if number < 0 and not isinstance(number, Int32):
            raise ValueError(f"popc({number}) depends on the number of bits: cast it to unsigned")
        return (number & _ALL_LANES if number < 0 else number).bit_count()

    def ffs(self, number: int) -> int:
        """Return the place of the lowest set bit, from 1; 0 if none is."""
        return Unsigned((number & -int(number)).bit_length())

    def selp(self, condition: object, if_true: _T, if_false: _T) -> _T:
        """Return one of two values, both of which were computed."""
        return if_true if condition else if_false

    def ldca(self, array: CheckedArray, index: object) -> Number:
        """Load an element; the cache hint has no effect here."""
        return array[index]

    ldcg = ldcs = ldcv = ldlu = ldca

    def stcg(self, array: CheckedArray, index: object, value: Number) -> None:
        """Store an element; the cache hint has no effect here."""
        array[index] = value

    stcs = stwb = stwt = stcg


def _of_dimensions(ndim: int, sizes: list[int]) -> int | tuple[int, ...]:
    """Return the first `ndim` sizes, as numba's grid functions do."""
    if ndim not in (1, 2, 3):
        raise ValueError(f"a grid has 1, 2 or 3 dimensions, not {ndim}")
    return sizes[0] if ndim == 1 else tuple(sizes[:ndim])


def _of_lane(values: dict[int, _T], lane: int) -> _T:
    """Return the value that a lane passed to a shuffle."""
    if lane not in values:
        raise UninitializedReadError(f"a shuffle reads lane {lane}, which does not participate")
    return values[lane]


def _as_mask(values: dict[int, Any], holds: Callable[[Any], bool]) -> int:
    """Return a mask of the lanes whose value passes, as numba does: signed, of 32 bits."""
    mask = sum(1 << lane for lane, value in values.items() if holds(value))
    return Int32(mask - 2**WARP_SIZE if mask >> (WARP_SIZE - 1) else mask)
