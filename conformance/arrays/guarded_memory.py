"""Memory between two inaccessible pages.

An array that is placed here ends at the page after it, or begins at the page before it: a read or
write one element outside raises SIGSEGV. Pages can be made read-only. The signal ends the process,
or is recorded inside `noticing_faults`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import signal
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

PAGE: Final = mmap.PAGESIZE
NO_ACCESS: Final = 0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

HANDLER: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""A signal handler: its arguments are the signal, a `siginfo_t`, and the thread's state."""

GETS_INFO: Final = 4
"""Linux' `SA_SIGINFO`."""

ADDRESS: Final = 16
"""The offset of `si_addr` in a `siginfo_t` on 64-bit Linux."""


class _SignalAction(ctypes.Structure):
    """Linux' `struct sigaction`."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class GuardedMemory:
    """Address space in which arrays are placed between inaccessible pages.

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
        """Make writes to these pages raise SIGSEGV."""
        self._protect(first, length, mmap.PROT_READ)

    @contextlib.contextmanager
    def noticing_faults(self) -> Iterator[list[int]]:
        """Record the first invalid access inside; it continues, and later ones are allowed.

        Yields:
            A list, which gets the offset of that access in this memory. Other faults end the
            process, as outside the block.
        """
        found: list[int] = []
        before = _SignalAction()

        def notice(_signal: int, info: int, _context: int) -> None:
            address = ctypes.c_size_t.from_address(info + ADDRESS).value - self._address
            if not 0 <= address < self._size:
                _LIBC.sigaction(signal.SIGSEGV, ctypes.byref(before), None)
                return  # the instruction faults again, with the former handler
            found.append(address)
            self._protect(0, self._size, mmap.PROT_READ | mmap.PROT_WRITE)

        handler = HANDLER(notice)
        pointer = ctypes.cast(handler, ctypes.c_void_p)
        action = _SignalAction(handler=pointer, flags=GETS_INFO)
        _LIBC.sigaction(signal.SIGSEGV, ctypes.byref(action), ctypes.byref(before))
        try:
            yield found
        finally:
            self._protect(0, self._size, mmap.PROT_READ | mmap.PROT_WRITE)
            _LIBC.sigaction(signal.SIGSEGV, ctypes.byref(before), None)

    def _protect(self, first: int, length: int, protection: int) -> None:
        address = ctypes.c_void_p(self._address + first)
        if _LIBC.mprotect(address, ctypes.c_size_t(length), protection):
            raise OSError(ctypes.get_errno(), "mprotect failed")
