"""A simulator of numba CUDA kernels, for machines without a GPU.

`simulate` runs a kernel's Python source in a seeded order of blocks and threads, and raises for
errors that a GPU does not report: accesses outside an array, values outside a type's range, races,
barriers that not all threads reach, and reads of memory that was never written.
"""

from conformance.simulator.errors import BarrierError, RaceError, UninitializedReadError
from conformance.simulator.launch import simulate

__all__ = ["BarrierError", "RaceError", "UninitializedReadError", "simulate"]
