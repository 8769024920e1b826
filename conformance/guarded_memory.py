"""Memory between two inaccessible pages.

An array that is placed here ends at the page after it, or begins at the page before it: a read or
write one element outside raises SIGSEGV. Pages can be made read-only. When a case is over, all of
them become inaccessible, so that the use of a stale address is noticed too.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

PAGE: Final = mmap.PAGESIZE
NO_ACCESS: Final = 0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class GuardedMemory:
    """Address space from which arrays are placed between inaccessible pages.

    Args:
        size: bytes of address space, a multiple of the page size.
    """

    def __init__(self, size: int = 1 << 26) -> None:
        self._map = mmap.mmap(-1, size)
        self._size = size
        self._address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]
        self._used = 0
        self._protect(0, size, NO_ACCESS)
        self._next = PAGE

    def place(self, array: Array, *, at_end: bool) -> tuple[Array, int, int]:
        """Copy a C-contiguous array to pages of its own.

        Args:
            array: what is copied.
            at_end: whether it ends where the pages end, or begins where they begin.

        Returns:
            The copy, and the offset and length of its pages, for `make_read_only`.

        Raises:
            MemoryError: The address space is used up.
        """
        length = max(-(-array.nbytes // PAGE), 1) * PAGE
        first = self._next
        if first + length + PAGE > self._size:
            raise MemoryError("the guarded memory is used up")
        self._next = first + length + PAGE  # one inaccessible page
        self._protect(first, length, mmap.PROT_READ | mmap.PROT_WRITE)
        offset = first + length - array.nbytes if at_end else first
        copied: Array = np.ndarray(array.shape, array.dtype, self._map, offset)
        copied[...] = array
        return copied, first, length

    def make_read_only(self, first: int, length: int) -> None:
        """Let writes to these pages end the process."""
        self._protect(first, length, mmap.PROT_READ)

    def forget(self) -> None:
        """Make all that was placed inaccessible, and begin again."""
        self._protect(0, self._next, NO_ACCESS)
        self._next = PAGE

    def _protect(self, first: int, length: int, protection: int) -> None:
        address = ctypes.c_void_p(self._address + first)
        if _LIBC.mprotect(address, ctypes.c_size_t(length), protection):
            raise OSError(ctypes.get_errno(), "mprotect failed")
