"""Python's ints as an array, at once: what a scheduler hands over in lists and dicts."""

import marshal
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

VERSION: Final = 2
"""Of what marshal writes: an int within int32 is `KIND` and four bytes, the lowest first."""

KIND: Final = b"i"
SIZE: Final = 5
"""Bytes of such an int; as many stand before the first, the kind and the length of the sequence."""


def pack_ints(values: Sequence[int]) -> npt.NDArray[np.int64] | None:
    """Return a list or tuple of ints as int64[len(values)]; None where an entry is anything else.

    To be told from bools, NumPy's ints and floats, ints would have to be looked at one by one:
    marshal does, in C, and writes what they are beside what they hold. From some twenty on that
    takes less than `map(type, values)` and `struct.pack`, of hundreds half of the time. Where each
    entry of five bytes begins with `KIND` there are ints only, since nothing else begins so.
    Whoever gets None (for what is beyond int32 too, or from a Python whose marshal writes
    otherwise) has to look at each.
    """
    try:
        # Their sum is an int: nothing is left that marshal would walk through, without end perhaps.
        if type(sum(values)) is not int:
            return None
        given: Any = values
        written = marshal.dumps(given, VERSION)
    except Exception:  # noqa: BLE001  # whatever other things raise that are added or written
        return None
    count = len(values)
    if not count:
        return np.empty(0, dtype=np.int64)
    if len(written) != SIZE * (count + 1) or written[SIZE::SIZE] != KIND * count:
        return None
    return np.ndarray(count, "<i4", written, SIZE + 1, (SIZE,)).astype(np.int64)
