"""Unsigned numbers in kernels: when they serve, and how they are divided.

Numba tests each signed index for being negative, to wrap it around, and each signed quotient, to
round it down; a `range` with a step begins with a division. So an index is unsigned where it is
used, what is divided is unsigned, and what goes by steps is an `np.uint32` in a `while` loop.

- What comes from the caller's data stays signed until it has been compared with the bounds.
- `np.uint32` is what the host keeps below 2**31: rows, columns, requests, threads, tokens of a
  batch. One more step of a whole grid is below 2**32.
- `np.uint64` casts what is an index by now: a product with a stride, a place in tables that may
  have 2**32 entries. It is not compared with what has a sign, nor is the sum of two `np.uint32`,
  which has 64 bits too: numba compares such numbers as floats.
"""

import numpy as np

from fast.kernels.cuda import device_function


@device_function
def divide(dividend: int, divisor: int) -> tuple[np.uint32, np.uint32]:
    """Return the quotient and the remainder of two numbers below 2**32, the second not 0."""
    quotient = np.uint32(np.uint32(dividend) // np.uint32(divisor))
    return quotient, np.uint32(dividend - quotient * np.uint32(divisor))


@device_function
def divide_up(dividend: int, divisor: int) -> np.uint32:
    """Return the quotient, rounded up, of two numbers below 2**31, the second not 0."""
    return np.uint32(np.uint32(dividend + divisor - 1) // np.uint32(divisor))
