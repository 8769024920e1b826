"""Other valid calls with arguments of the same shapes, in the same memory.

An implementation that caches answers by the address, shape or sum of its arguments is right until a
caller fills the same buffers with another batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from conformance.arrays.guard_bands import Array, base_of, same_view
from conformance.values.call import Call
from conformance.values.parts import arrays_in

Contents: TypeAlias = Mapping[int, Array]
"""The new contents of memory, by the id of the drawn memory."""


def neighbours(call: Call, written: frozenset[str]) -> Iterator[Contents]:
    """Yield new contents for the memory of a call's arguments, which may make another valid call.

    The entries of an array are reversed; for query starts, the query lengths are. So shapes, totals
    and sums stay the same. Next they are rotated, and last their lowest bits are flipped: other
    functions accept these changes, and flips change arrays of one entry too. Equal arrays stay
    equal, since one may be a copy of the other. First all arrays change, then one at a time.

    Args:
        call: A valid call.
        written: The arguments that the function writes, which keep their contents.
    """
    arguments = {name: value for name, value in call.arguments.items() if name not in written}
    for change in (_reversed, _rotated, _flipped):
        groups: dict[tuple[object, ...], list[Array]] = {}
        for _, array in arrays_in(arguments, "arguments"):
            if change(array).tobytes() != array.tobytes():
                groups.setdefault((array.shape, array.dtype, array.tobytes()), []).append(array)
        every = [array for group in groups.values() for array in group]
        for chosen in [every, *groups.values()] if len(groups) > 1 else groups.values():
            yield _changed_contents(chosen, change)


def _changed_contents(arrays: list[Array], change: Callable[[Array], Array]) -> Contents:
    """Return the contents of the memory of arrays after each of them is changed."""
    contents: dict[int, Array] = {}
    for array in arrays:
        memory = base_of(array)
        copied = contents.setdefault(id(memory), memory.copy())
        same_view(array, copied)[...] = change(array)
    return contents


def _reversed(array: Array) -> Array:
    """Return an array reversed; for starts, with the lengths between them reversed.

    >>> _reversed(np.array([0, 3, 4])).tolist(), _reversed(np.array([5, 3])).tolist()
    ([0, 1, 4], [3, 5])
    """
    lengths = _lengths_between(array)
    if lengths is not None:
        return _starts_of(lengths[::-1], array.dtype)
    return array[::-1] if array.ndim else array


def _rotated(array: Array) -> Array:
    """Return an array with its first entry last; for starts, with the first length last.

    >>> _rotated(np.array([0, 3, 4, 9])).tolist(), _rotated(np.array([5, 3, 4])).tolist()
    ([0, 1, 6, 9], [3, 4, 5])
    """
    lengths = _lengths_between(array)
    if lengths is not None:
        return _starts_of(np.roll(lengths, -1), array.dtype)
    return np.roll(array, -1, axis=0) if array.ndim else array


def _flipped(array: Array) -> Array:
    """Return an array of integers or booleans with the lowest bit of each entry flipped.

    >>> _flipped(np.array([0, 3, 4])).tolist(), _flipped(np.array([5, -1])).tolist()
    ([0, 3, 4], [4, -2])
    """
    if array.dtype.kind not in "biu" or _lengths_between(array) is not None:
        return array
    return np.bitwise_xor(array, np.ones_like(array))


def _lengths_between(array: Array) -> Array | None:
    """Return the lengths between starts, or None for other arrays."""
    if array.ndim != 1 or array.size == 0 or array.dtype.kind != "i" or array[0] != 0:
        return None
    lengths = np.diff(array)
    return None if (lengths < 0).any() else lengths


def _starts_of(lengths: Array, dtype: np.dtype[Any]) -> Array:
    """Return the cumulative starts of some lengths, with their sum at the end."""
    starts = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=starts[1:])
    return starts
