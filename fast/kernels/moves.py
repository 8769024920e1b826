"""Move 1 to 16 bytes at once, for the kernels that move rows.

Arrays are of bytes; every address must be a multiple of the number of bytes that are moved.
"""

from typing import Any, Final, TypeAlias

from fast.kernels.cuda import Instruction, device_function

Bytes: TypeAlias = Any
"""An array of uint8 in a kernel."""

WIDEST: Final = 16
"""The most bytes that one thread moves at once."""


_copy_16, _copy_8, _copy_4, _copy_2, _copy_1 = (Instruction("copy", n) for n in (16, 8, 4, 2, 1))
_fill_16, _fill_8, _fill_4, _fill_2, _fill_1 = (Instruction("fill", n) for n in (16, 8, 4, 2, 1))


@device_function
def copy_bytes(target: Bytes, at: int, source: Bytes, start: int, size: int) -> None:
    """Copy 16, 8, 4, 2 or 1 bytes from a place in one array to a place in another, at once."""
    if size == 16:
        _copy_16(target, at, source, start)
    elif size == 8:
        _copy_8(target, at, source, start)
    elif size == 4:
        _copy_4(target, at, source, start)
    elif size == 2:
        _copy_2(target, at, source, start)
    else:
        _copy_1(target, at, source, start)


@device_function
def fill_bytes(target: Bytes, at: int, pattern: int, size: int) -> None:
    """Store the first 16, 8, 4, 2 or 1 bytes of a repeating pattern of 8, at once.

    The pattern is an int64 of at least 0; its first byte is the lowest.
    """
    if size == 16:
        _fill_16(target, at, pattern)
    elif size == 8:
        _fill_8(target, at, pattern)
    elif size == 4:
        _fill_4(target, at, pattern)
    elif size == 2:
        _fill_2(target, at, pattern)
    else:
        _fill_1(target, at, pattern)
