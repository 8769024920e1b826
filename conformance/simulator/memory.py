"""The arrays of a simulated kernel, which check every access."""

from collections.abc import Callable
from typing import Any, Final

import numpy.typing as npt

from conformance.simulator.errors import RaceError, UninitializedReadError
from conformance.simulator.history import AccessEpoch, Conflict, History
from conformance.simulator.scalars import Number, Unsigned, as_cast


class Clock:
    """The current moment of the thread that is running; the scheduler sets it."""

    __slots__ = ("moment",)

    moment: AccessEpoch


class CheckedArray:
    """An array in a simulated kernel: elements are Python numbers, and every access is checked.

    Args:
        name: Its name in messages.
        data: The memory; written to when the kernel stores.
        history: The accesses to its memory; arrays that may overlap share one history.
        clock: The clock of the launch.
        is_uninitialized: Whether its elements must be stored before they are read.

    Raises:
        NotImplementedError: The simulator has no numbers of that dtype.
    """

    __slots__ = (
        "_address",
        "_axes",
        "_cast",
        "_clock",
        "_data",
        "_flat",
        "_history",
        "_is_blank",
        "_is_unsigned",
        "dtype",
        "is_contiguous",
        "name",
        "ndim",
        "shape",
        "size",
        "strides",
    )

    def __init__(
        self,
        name: str,
        data: npt.NDArray[Any],
        history: History,
        clock: Clock,
        *,
        is_uninitialized: bool = False,
    ) -> None:
        self.name = name
        self.shape: Final[tuple[int, ...]] = data.shape
        self.strides: Final[tuple[int, ...]] = data.strides
        self.size: Final = data.size
        self.ndim: Final = data.ndim
        self.dtype: Final = data.dtype
        self.is_contiguous: Final[bool] = data.flags.c_contiguous
        self._data = data
        self._flat = data.flat
        self._axes = tuple(zip(data.shape, data.strides, strict=True))
        self._address = data.__array_interface__["data"][0]
        self._cast = as_cast(data.dtype)
        self._is_unsigned = self._cast.kind == "u"
        self._history = history
        self._clock = clock
        self._is_blank = is_uninitialized

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError(f"{self.name} has no dimensions, so it has no len")
        return self.shape[0]

    def __getitem__(self, index: object) -> Number:
        place, address = self._find(index)
        conflict = self._history.load(address, self._clock.moment)
        if conflict is not None:
            raise self._race("load", index, conflict)
        return self._read(index, place, address)

    def __setitem__(self, index: object, value: object) -> None:
        place, address = self._find(index)
        number = self._fitting(index, value)
        conflict = self._history.store(address, self._clock.moment)
        if conflict is not None:
            raise self._race("store", index, conflict)
        self._flat[place] = number

    def address_of(self, index: int) -> int:
        """Return the address of an element of a vector; the index may be out of bounds."""
        return int(self._address) + index * self.strides[0]

    def update(self, index: object, operation: Callable[[Number], object]) -> Number:
        """Replace an element atomically by the operation's result, and return the old value."""
        place, address = self._find(index)
        conflict = self._history.atomic(address, self._clock.moment)
        if conflict is not None:
            raise self._race("atomic", index, conflict)
        old = self._read(index, place, address)
        self._flat[place] = self._fitting(index, operation(old))
        return old

    def _read(self, index: object, place: int, address: int) -> Number:
        """Return the element as a Python number."""
        if self._is_blank and not self._history.is_written(address):
            raise UninitializedReadError(f"{self.name}[{_spell(index)}] is read, but never written")
        value: Number = self._data.item(place)
        return Unsigned(value) if self._is_unsigned else value

    def _find(self, index: object) -> tuple[int, int]:
        """Return the position of an element in C order, and its address.

        Raises:
            IndexError: The index is negative, past the end, or has the wrong number of entries.
            TypeError: It is not an integer.
        """
        if type(index) is int and self.ndim == 1:  # the usual case, 0.2 us faster
            length, stride = self._axes[0]
            if 0 <= index < length:
                return index, self._address + index * stride
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != self.ndim:
            raise IndexError(
                f"{self.name}[{_spell(index)}] has {len(indices)} indices, but shape {self.shape} "
                f"needs {self.ndim} (views of rows and slices are not simulated)"
            )
        place, address = 0, self._address
        for entry, (length, stride) in zip(indices, self._axes, strict=True):
            if not isinstance(entry, int) or isinstance(entry, bool):
                raise TypeError(f"{self.name}[{_spell(index)}]: an index must be an integer")
            if not 0 <= entry < length:
                raise IndexError(f"{self.name}[{_spell(index)}] is outside its shape {self.shape}")
            place = place * length + entry
            address += entry * stride
        return place, address

    def _fitting(self, index: object, value: object) -> Number:
        """Check that a value may be stored at this index, and return it.

        Raises:
            OverflowError: It is outside the range of the dtype.
            TypeError: It is not a number, or a float for an array of integers.
            ValueError: The array is read-only.
        """
        if not self._data.flags.writeable:
            raise ValueError(f"{self.name}[{_spell(index)}] is stored, but the array is read-only")
        if not isinstance(value, int) and (self._cast.kind != "f" or not isinstance(value, float)):
            raise TypeError(
                f"{self.name}[{_spell(index)}] = {value!r}: a {type(value).__name__} "
                f"in an array of {self.dtype}; cast it first"
            )
        if not self._cast.holds(value):
            raise OverflowError(
                f"{self.name}[{_spell(index)}] = {value} does not fit {self.dtype} "
                f"({self._cast.low}..{self._cast.high})"
            )
        return value

    def _race(self, access: str, index: object, conflict: Conflict) -> RaceError:
        """Return the error for an access that is not ordered after an earlier one."""
        other = conflict.moment
        return RaceError(
            f"{self.name}[{_spell(index)}]: this {access} races with the {conflict.access} by "
            f"block {tuple(other.block)}, thread {tuple(other.index)}: no barrier orders them"
        )


def _spell(index: object) -> str:
    """Return an index as it is written between the brackets."""
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)
