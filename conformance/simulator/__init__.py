"""A simulator of numba CUDA kernels, for machines without a GPU.

`simulate` runs a kernel's Python source in a seeded order of blocks and threads, and raises where
a GPU would go wrong silently: outside an array, past a type's range, in a race, at a barrier that
not all threads reach, on memory that was never written.
"""

from conformance.simulator.errors import BarrierError, RaceError, UninitializedReadError
from conformance.simulator.launch import simulate

__all__ = ["BarrierError", "RaceError", "UninitializedReadError", "simulate"]
