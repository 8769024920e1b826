"""Pack Python ints, which a scheduler passes in lists and dicts, into arrays."""

import marshal
from collections.abc import Sequence
from operator import countOf
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MARSHAL_FROM: Final = 128
"""The fewest ints that are packed by `marshal`: it takes longer than the plain way for 8, the same
time for 64, half the time for hundreds."""

VERSION: Final = 2
"""The format of `marshal`: an int within int32 is `KIND` and four bytes, the lowest first."""

KIND: Final = b"i"
SIZE: Final = 5
"""Bytes of such an int. As many come before the first: the kind and the length of the sequence."""


def pack_ints(values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """Return a list or tuple of Python ints as int64[len(values)].

    Returns:
        The array; None if an entry is not an int (or is a bool, or NumPy's) or is too large: then
        the caller must check each entry. Too large is beyond int32 with `marshal`, else beyond
        int64.
    """
    if MARSHAL_WORKS and len(values) >= MARSHAL_FROM:
        return pack_with_marshal(values)
    if countOf(map(type, values), int) < len(values):
        return None
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return None


def pack_with_marshal(values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    """Return ints within int32 as an array; None if an entry is anything else.

    `marshal` writes the type of each entry before its value, in C. If every fifth byte is `KIND`,
    all entries are ints, since no other type has that byte.
    """
    try:
        # If the sum is an int, no entry is a container, which marshal would traverse: endlessly if
        # it contains itself.
        with np.errstate(all="ignore"):  # NumPy's ints may overflow
            is_int = type(sum(values)) is int
        if not is_int:
            return None
        sequence: Any = values
        written = marshal.dumps(sequence, VERSION)
    except Exception:  # whatever entries raise that are added or written
        if countOf(map(type, values), int) == len(values):
            raise  # ints raise nothing: it is of a signal handler
        return None
    count = len(values)
    if len(written) != SIZE * (count + 1) or written[SIZE::SIZE] != KIND * count:
        return None
    return np.ndarray(count, "<i4", written, SIZE + 1, (SIZE,)).astype(np.int64)


def _marshal_works() -> bool:
    """Return whether this Python's `marshal` writes ints as expected."""
    ints = [105, 0, -1, 2**31 - 1, -(2**31)]
    packed = pack_with_marshal(ints)
    others = ([True], [2**31], [1.0], [None], [b"iiii"])
    return (
        packed is not None
        and packed.tolist() == ints
        and all(pack_with_marshal(other) is None for other in others)
    )


MARSHAL_WORKS: Final = _marshal_works()
"""Whether `marshal` may be used; tested at import, since its format is a detail of Python."""
