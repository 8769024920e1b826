"""Fills memory that NumPy, numba and torch allocate, so that it has no earlier call's answer.

torch fills its own in deterministic mode, always with the same value. NumPy and numba have no such
mode, but their allocators can be replaced: here by one that fills the memory it returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

POISON_BYTE: Final = 0xAA
"""What new memory is filled with: no plausible number."""

HANDLER: Final = b"mem_handler"
"""The name of the capsules in which NumPy passes allocators."""

SET_HANDLER, GET_HANDLER = 304, 305
"""The indices of `PyDataMem_SetHandler` and `PyDataMem_GetHandler` in NumPy's C API table."""

RAW: Final = 0
"""The domain of `PyMem_RawMalloc`."""


class _Allocator(ctypes.Structure):
    """Python's `PyMemAllocatorEx`, whose first fields are those of NumPy's `PyDataMemAllocator`."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")
    ]


class _Handler(ctypes.Structure):
    """NumPy's `PyDataMem_Handler`."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    ]


_HANDLERS: Final[list[_Handler]] = []
"""The allocators that capsules point to, which arrays use until they are freed."""


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Fill the arrays that NumPy allocates in this thread with poison.

    From the first use on, arrays that numba's compiled loops allocate are always filled.
    """
    set_handler, filling = _numpy_handler()
    before = set_handler(filling)
    try:
        yield
    finally:
        set_handler(before)


@contextlib.contextmanager
def filled_tensors(byte: int) -> Iterator[None]:
    """Fill CPU tensors that `new_empty` allocates inside with a byte: poison, or 0.

    Poison is a negative int, which a kernel may take for "none", as in a row's rank; 0 is the first
    row. The largest int, torch's own value in deterministic mode, exceeds every number of rows, so
    that a kernel may compare with it and still be right by chance.
    """
    new_empty = torch.Tensor.new_empty

    def filled(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        made: torch.Tensor = new_empty(self, *args, **options)
        if made.is_cpu and made.dtype is not torch.bool and made.numel():
            made.view(-1).view(torch.uint8).fill_(byte)
        return made

    torch.Tensor.new_empty = filled  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.Tensor.new_empty = new_empty  # type: ignore[method-assign]


@functools.cache
def _numpy_handler() -> tuple[Callable[[Any], Any], Any]:
    """Return the setter of NumPy's allocator, and a filling allocator; install it for numba."""
    from numba.core.runtime import _nrt_python  # type: ignore[attr-defined]  # noqa: PLC0415
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # noqa: PLC0415

    python: Any = ctypes.pythonapi
    find, make = python.PyCapsule_GetPointer, python.PyCapsule_New
    find.argtypes, find.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    make.restype = ctypes.py_object

    address = _filling_malloc().address
    raw = _Allocator()
    python.PyMem_GetAllocator(RAW, ctypes.byref(raw))
    raw.malloc = address
    python.PyMem_SetAllocator(RAW, ctypes.byref(raw))
    _nrt_python.memsys_use_cpython_allocator()

    interface: Any = _multiarray_umath
    functions = ctypes.cast(find(interface._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))  # noqa: SLF001
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[SET_HANDLER])
    get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[GET_HANDLER])
    handler = _Handler.from_buffer_copy(
        ctypes.string_at(find(get_handler(), HANDLER), ctypes.sizeof(_Handler))
    )
    handler.allocator.malloc = address
    capsule = make(ctypes.addressof(handler), HANDLER, None)
    _HANDLERS.append(handler)
    return set_handler, capsule


@functools.cache
def _filling_malloc() -> Any:
    """Return a compiled `malloc` that takes a context first, and fills the memory it returns."""
    from numba import cfunc, types  # noqa: PLC0415  # numba takes 0.3 s to import

    libc = ctypes.CDLL(None)
    malloc, memset = libc.malloc, libc.memset
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_size_t
    memset.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_size_t]

    def allocate(_context: Any, size: Any) -> Any:
        address = malloc(max(size, 1))
        if address:
            memset(address, POISON_BYTE, size)
        return address

    return cfunc(types.uintp(types.voidptr, types.uintp))(allocate)
