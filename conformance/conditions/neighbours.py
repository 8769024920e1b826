"""Other valid calls with arguments of the same shapes, in the same memory.

An implementation that recognises its arguments by address, shape or sum, and returns an earlier
answer, is right until a caller fills the same buffers with another batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from conformance.calls import Call
from conformance.strategies.arrays import Array, base_of, same_view
from conformance.values import arrays_in

Contents: TypeAlias = Mapping[int, Array]
"""What memory is to hold, by the id of the drawn memory."""


def neighbours(call: Call, written: frozenset[str]) -> Iterator[Contents]:
    """Yield contents with which the arguments of a call may be those of another valid call.

    The entries of an array are reversed; of query starts, the query lengths are. So shapes, totals
    and sums stay the same. Equal arrays stay equal, since one may be a copy of the other. All
    arrays change, then each alone.

    Args:
        call: A valid call.
        written: The arguments that the function writes, which keep their contents.
    """
    groups: dict[tuple[object, ...], list[Array]] = {}
    arguments = {name: value for name, value in call.arguments.items() if name not in written}
    for _, array in arrays_in(arguments, "arguments"):
        if _reversed(array).tobytes() != array.tobytes():
            groups.setdefault((array.shape, array.dtype, array.tobytes()), []).append(array)
    every = [array for group in groups.values() for array in group]
    for chosen in [every, *groups.values()] if len(groups) > 1 else groups.values():
        yield _reversed_contents(chosen)


def _reversed_contents(arrays: list[Array]) -> Contents:
    """Return the contents of the memory of arrays after each of them is reversed."""
    contents: dict[int, Array] = {}
    for array in arrays:
        memory = base_of(array)
        copied = contents.setdefault(id(memory), memory.copy())
        same_view(array, copied)[...] = _reversed(array)
    return contents


def _reversed(array: Array) -> Array:
    """Return an array from back to front; of starts, the lengths between them.

    >>> _reversed(np.array([0, 3, 4])).tolist(), _reversed(np.array([5, 3])).tolist()
    ([0, 1, 4], [3, 5])
    """
    if array.ndim == 0 or array.size == 0:
        return array
    lengths = np.diff(array) if array.ndim == 1 and array.dtype.kind == "i" else None
    if lengths is None or array[0] != 0 or (lengths < 0).any():
        return array[::-1]
    starts = np.zeros_like(array)
    np.cumsum(lengths[::-1], out=starts[1:])
    return starts
