"""Unsigned numbers in kernels: when to use them, and how to divide them.

Numba tests whether each signed index is negative, to wrap it, and each signed quotient, to round it
down; a `range` with a step begins with a division. So an index is unsigned where it is used,
dividends are unsigned, and loops with a step use an `np.uint32` in a `while` loop.

- A number from the caller's data stays signed until it has been compared with the bounds.
- `np.uint32` is for numbers that the host keeps below 2**31: rows, columns, requests, threads,
  tokens of a batch. One more step of a whole grid is below 2**32.
- `np.uint64` casts a checked index: a product with a stride, a place in tables that may have 2**32
  entries. It is not compared with signed numbers, nor is the sum of two `np.uint32`, which has 64
  bits too: numba compares such numbers as floats.
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
