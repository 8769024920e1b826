"""Convert a call, with every array placed in guarded memory."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from conformance.change_tracking import argument_of
from conformance.conversion import Converter
from conformance.implementations import Implementation
from conformance.strategies.arrays import Array
from tools.probe.guarded_memory import GuardedMemory


class PlacingCarrier(Converter):
    """Copies arguments into guarded memory, each array to pages of its own.

    Args:
        implementation: what has classes in the place of `reference`'s.
        memory: where arrays are placed.
        random: decides whether an array ends at a guard page or begins after one, and whether a
            view takes the memory around it along.
        changes: the arguments that the function may change.
        options: those of `Converter`.
    """

    def __init__(
        self,
        implementation: Implementation,
        memory: GuardedMemory,
        random: Random,
        changes: frozenset[str],
        **options: Any,
    ) -> None:
        super().__init__(implementation, "cpu", **options)
        self._memory, self._random, self._changes_allowed = memory, random, changes
        self.may_span = True
        self._path = ""
        self._pages: list[tuple[str, int, int]] = []

    def protect(self) -> None:
        """Make every array read-only that the function may not change."""
        for path, first, length in self._pages:
            if argument_of(path) not in self._changes_allowed:
                self._memory.make_read_only(first, length)

    def _convert_array(self, array: Array, path: str) -> Any:
        self._path = path
        if self.may_span and self._random.random() < 0.7:
            array = spanned(array)
        return super()._convert_array(array, path)

    def _copied(self, drawn: Array) -> Array:
        at_end = self._random.random() < 0.7
        copied, first, length = self._memory.place(drawn, at_end=at_end)
        self._pages.append((self._path, first, length))
        return copied


def spanned(array: Array) -> Array:
    """Return the same values with the same strides, in memory that ends with the last element.

    >>> view = np.arange(9)[1:6:2]
    >>> spanned(view).tolist(), spanned(view).base.tolist()
    ([1, 3, 5], [1, 2, 3, 4, 5])
    """
    owner: Any = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner is array or not array.size or not owner.flags.c_contiguous:
        return array
    low = high = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    for length, stride in zip(array.shape, array.strides, strict=True):
        low, high = low + min(stride, 0) * (length - 1), high + max(stride, 0) * (length - 1)
    start, stop = low // array.itemsize, high // array.itemsize + 1
    span = owner.reshape(-1)[start:stop].copy()
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0] - low
    data = span.view(np.uint8).data
    return np.ndarray(array.shape, array.dtype, data, first, array.strides)
