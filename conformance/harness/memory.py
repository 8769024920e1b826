"""Memory: the arrays of a call become tensors between guards, in layouts that must not matter."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from conformance.adapters.implementations import is_of_fast
from conformance.harness.contract import Arguments, Contract
from conformance.harness.story import Circumstances, Difference
from conformance.harness.values import (
    Array,
    Drawn,
    Stub,
    arrays,
    is_object,
    parts,
    rebuilt,
    root_of,
)
from reference.metadata_validation import FIELDS

if TYPE_CHECKING:
    from conformance.harness.targets import Target

NUMPY_IN_BOTH_TWINS: Final = frozenset(
    {"num_scheduled_tokens", *(name for name, one in FIELDS.items() if one.role == "numpy")}
)
"""Arguments and fields whose arrays stay NumPy's."""


def is_on_host(name: str) -> bool:
    """Return whether the tensors in a field are on the CPU."""
    is_known = name in FIELDS and FIELDS[name].role == "host"
    return is_known or name == "cpu" or name.endswith("_cpu")


GUARD: Final = 16
"""Elements before and after the memory of an array."""

POISON: Final = 77
"""What the elements around an array hold: a plausible number, so that reading one gives an answer
that is wrong."""

Strides: TypeAlias = tuple[int, ...]
Layout: TypeAlias = Callable[[Array], Strides]


def _in_order(shape: tuple[int, ...], step: int) -> Strides:
    strides: list[int] = []
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def _padded_rows(array: Array) -> Strides:
    if array.ndim < 2:
        return _in_order(array.shape, 1)
    return (*_in_order(array.shape[:-1], array.shape[-1] + 3), 1)


def _column_major(array: Array) -> Strides:
    return tuple(reversed(_in_order(array.shape[::-1], 1)))


def _expanded(array: Array) -> Strides:
    """Repeat one entry along each axis along which all are equal."""
    strides = list(_in_order(array.shape, 1))
    for axis in range(array.ndim):
        with np.errstate(invalid="ignore"):  # of NaNs
            is_equal = (
                (array == np.take(array, [0], axis)).all() if array.shape[axis] > 1 else False
            )
        if is_equal:
            strides[axis] = 0
    return tuple(strides)


def _reversed(array: Array) -> Strides:
    return tuple(-stride for stride in _in_order(array.shape, 1))


LAYOUTS: Final[Mapping[str, Layout]] = {
    "dense": lambda array: _in_order(array.shape, 1),
    "strided": lambda array: _in_order(array.shape, 2),
    "every third element": lambda array: _in_order(array.shape, 3),
    "padded rows": _padded_rows,
    "column-major": _column_major,
    "expanded": _expanded,
    "reversed": _reversed,  # torch has no negative strides: a NumPy array's only
}
"""Strides of an array, in elements. All lie at an offset in their memory, odd or even."""


class Placed(NamedTuple):
    """An array of a call, and where it lies for the target."""

    name: str  # where it is: `common_attn_metadata.seq_lens`
    ours: Array  # the array that `reference` gets
    memory: Array  # all memory around the target's
    view: Array  # The target's elements within `memory`, as an array
    given: Any  # what the target gets: a tensor, or a NumPy array
    on_device: torch.Tensor | None  # `memory` on a GPU; None on the CPU
    is_negated: bool  # whether `memory` has the elements with the other sign

    def signed(self, array: Array) -> Array:
        """Return an array with the sign that `memory` has, or had before."""
        return np.negative(array) if self.is_negated else array


class NotMadeError(Exception):
    """An implementation raises when an object is made for an argument: its class, the exception."""


class Memory:
    """Converts the arguments of a call for a target, and finds what the call changes."""

    def __init__(
        self,
        target: Target,
        contract: Contract,
        circumstances: Circumstances,
        *,
        is_paged: bool = False,  # memory lies in pages of its own, which can be made read-only
    ) -> None:
        self.target, self.contract, self.circumstances = target, contract, circumstances
        self.is_paged = is_paged
        self.placed: list[Placed] = []
        self.made: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._shared: set[int] = set()
        self._takes_scalars = target.implementation.adapter.takes_numpy_scalars
        self._roots: dict[tuple[int, str], tuple[Array, Array, torch.Tensor | None]] = {}

    def converted(self, arguments: Arguments) -> Arguments:
        known = {id(array): array for array in arrays(arguments)}
        roots = Counter(id(root_of(array)) for array in known.values())
        self._shared = {root for root, count in roots.items() if count > 1}
        return {name: self.convert(value, name) for name, value in arguments.items()}

    def convert(self, value: Any, name: str) -> Any:
        """Return the target's value for one of `reference`'s; each object is converted once."""
        if isinstance(value, np.generic) and not self._takes_scalars:
            return value.item()
        if value is None or isinstance(value, str | int | float | slice):
            return value
        key = id(value), self._place(value, name)
        if key not in self.made:
            self.made[key] = value, self._convert(value, name)
        return self.made[key][1]

    def _convert(self, value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, np.dtype):
            return getattr(torch, value.name)
        if isinstance(value, type) and value.__module__.partition(".")[0] == "reference":
            return self.target.find(value.__name__)
        if not (isinstance(value, list | tuple | dict) or is_object(value)):
            return value
        fields = [
            (key, self.convert(part, f"{name}.{key}" if isinstance(key, str) else name))
            for key, part in parts(value)
        ]
        if is_object(value) and not isinstance(value, SimpleNamespace | Stub | Drawn):
            return self._object(value, fields)
        return rebuilt(value, fields)

    def _object(self, value: Any, fields: list[tuple[str, Any]]) -> Any:
        """Return the target's object for one of `reference`, which may have one more field."""
        ours = _class_of_reference(type(value))  # type: ignore[arg-type]  # hashable
        if ours is None:
            return rebuilt(value, fields)
        implementation = self.target.implementation
        found = implementation.find(ours.__name__) if implementation.offers(ours.__name__) else None
        if is_of_fast(found):
            cls = found if ours is type(value) else with_more_fields(found)
            return rebuilt(value, fields, cls)
        names = {field.name for field in dataclasses.fields(ours)}
        try:
            made = implementation.new(ours.__name__, dict(kv for kv in fields if kv[0] in names))
        except Exception as error:
            raise NotMadeError(ours.__name__, error) from error
        for name, part in fields:
            if name not in names:
                object.__setattr__(made, name, part)
        return made

    def _place(self, value: Any, name: str) -> str:
        if not isinstance(value, np.ndarray):
            return ""
        last = name.rpartition(".")[2]
        if last in NUMPY_IN_BOTH_TWINS or last in self.contract.host:
            return "numpy"
        return "cpu" if is_on_host(last) else self.target.device

    def _array(self, array: Array, name: str) -> Any:
        where = self._place(array, name)
        argument = name.partition(".")[0]
        is_plain = argument in self.contract.written
        if id(root_of(array)) in self._shared and root_of(array) is not array:
            return self._view_of_root(array, name, where)
        layouts = self.circumstances.layouts
        layout = layouts[len(self.placed) % len(layouts)]
        if (
            argument in self.contract.dense
            or (layout == "expanded" and is_plain)
            or (layout == "reversed" and where != "numpy")
        ):
            layout = "dense"
        strides = LAYOUTS[layout](array)
        reach = sum((n - 1) * abs(s) for n, s in zip(array.shape, strides, strict=True))
        size = reach + 1 if array.size else 0
        # Bytes stay aligned: they may be viewed as numbers.
        offset = GUARD + len(layouts) % 2 * (1 if array.itemsize > 1 else GUARD)
        memory = self._filled(size + offset + GUARD + 1, array.dtype)
        first = offset + sum(
            (n - 1) * -s for n, s in zip(array.shape, strides, strict=True) if s < 0 and n
        )
        view = _view(memory, array.shape, strides, first)
        is_negated = (
            self.circumstances.is_negated
            and not is_plain
            and where != "numpy"
            and array.dtype.kind in "if"
            and array.dtype.itemsize > 1
            and not (array != array).any()  # noqa: PLR0124  # torch makes another NaN of one
        )
        if array.size:
            np.negative(array, out=view) if is_negated else np.copyto(view, array)
        if where == "numpy":
            return self._track(Placed(name, array, memory, view, view, None, False))
        flat = torch.from_numpy(_for_torch(memory)).view(torch_dtype(memory.dtype))
        on_device = flat.to(where) if where != "cpu" else None
        given = (flat if on_device is None else on_device).as_strided(array.shape, strides, first)
        if is_negated:
            given = torch._neg_view(given)  # noqa: SLF001  # torch's name for a lazy negation
        return self._track(Placed(name, array, memory, view, given, on_device, is_negated))

    def _track(self, placed: Placed) -> Any:
        self.placed.append(placed)
        return placed.given

    def _view_of_root(self, array: Array, name: str, where: str) -> Any:
        """Return a view of memory in which another argument lies too."""
        root = root_of(array)
        key = id(root), where
        if key not in self._roots:
            elements = root.reshape(-1, order="A")
            memory = self._filled(elements.size + 2 * GUARD, elements.dtype)
            memory[GUARD : GUARD + elements.size] = elements
            copy = None
            if where not in {"numpy", "cpu"}:
                copy = torch.from_numpy(_for_torch(memory)).to(where)
            self._roots[key] = root, memory, copy
        _, memory, on_device = self._roots[key]
        begin = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        first = GUARD + begin // array.itemsize
        strides = tuple(stride // array.itemsize for stride in array.strides)
        view = _view(memory, array.shape, strides, first)
        if where == "numpy":
            return self._track(Placed(name, array, memory, view, view, None, False))
        flat: Any = torch.from_numpy(_for_torch(memory)) if on_device is None else on_device
        given = flat.view(torch_dtype(memory.dtype)).as_strided(array.shape, strides, first)
        return self._track(Placed(name, array, memory, view, given, on_device, False))

    def _filled(self, size: int, dtype: Any) -> Array:
        if not self.is_paged:
            return np.full(size, POISON).astype(dtype)
        pages = mmap.mmap(-1, size * dtype.itemsize + mmap.PAGESIZE)
        memory: Array = np.frombuffer(pages, dtype, size)
        memory[:] = np.full(1, POISON).astype(dtype)
        return memory

    def refill(self) -> None:
        for placed in self.placed:
            if placed.ours.size:
                np.copyto(placed.view, placed.signed(placed.ours))
            if placed.on_device is not None:
                placed.on_device.copy_(torch.from_numpy(_for_torch(placed.memory)))

    def snapshot(self) -> dict[int, Array]:
        return {id(placed.memory): placed.memory.copy() for placed in self.placed}

    def changed(self, before: Mapping[int, Array]) -> Difference | None:
        """Return the first memory that is not as `reference` left it, or as it was around it."""
        return next(self.changes(before), None)

    def changes(self, before: Mapping[int, Array]) -> Iterator[Difference]:
        wanted = {key: memory.copy() for key, memory in before.items()}
        for placed in self.placed:
            if placed.on_device is not None:
                placed.memory.view(np.uint8)[:] = placed.on_device.view(torch.uint8).cpu().numpy()
            if placed.ours.size:
                view = _view_like(placed.view, placed.memory, wanted[id(placed.memory)])
                np.copyto(view, placed.signed(placed.ours))
        for placed in self.placed:
            intact = wanted[id(placed.memory)]
            if placed.name.rpartition(".")[2] in self.target.lacks:
                continue
            if np.array_equal(placed.memory.view(np.uint8), intact.view(np.uint8)):
                continue
            mine, right = bits(placed.view), bits(placed.signed(placed.ours))
            if np.array_equal(mine, right):
                where, kind = f"the memory around {placed.name}", "writes outside an argument"
                index = first_difference(bits(placed.memory), bits(intact))
                yield Difference(where, placed.memory, intact, kind, index=index)
                continue
            is_written = placed.name.partition(".")[0] in self.contract.written
            kind = "wrong value" if is_written else "changes an argument"
            got, index = np.array(placed.signed(placed.view)), first_difference(mine, right)
            yield Difference(placed.name, got, placed.ours.copy(), kind, index=index)

    def protect(self, *, is_read_only: bool) -> None:
        """Make the pages of memory read-only, apart from what the function writes."""
        for placed in self.placed:
            if placed.name.partition(".")[0] not in self.contract.written:
                start = placed.memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
                length = placed.memory.nbytes + mmap.PAGESIZE
                access = mmap.PROT_READ if is_read_only else mmap.PROT_READ | mmap.PROT_WRITE
                pages = ctypes.c_void_p(start), ctypes.c_size_t(length)
                if ctypes.CDLL(None).mprotect(*pages, access):
                    raise OSError("mprotect failed")


@functools.cache
def _class_of_reference(cls: type[Any]) -> type[Any] | None:
    """Return the class of `reference` that a class is, or of which it is a subclass."""
    found = (base for base in cls.__mro__ if base.__module__.partition(".")[0] == "reference")
    return next(found, None)


@functools.cache
def with_more_fields(cls: type[Any]) -> type[Any]:
    is_frozen = cls.__dataclass_params__.frozen
    more = [("more", int, dataclasses.field(default=5))]
    return dataclasses.make_dataclass(cls.__name__, more, bases=(cls,), frozen=is_frozen, eq=False)


@functools.cache
def torch_dtype(dtype: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, np.dtype(dtype).name)
    return found


def _for_torch(memory: Array) -> Array:
    """Return memory as an array that torch takes: as bytes if it does not know the dtype."""
    return memory if memory.dtype.isbuiltin == 1 else memory.view(np.uint8)


def _view(memory: Array, shape: tuple[int, ...], strides: Strides, first: int) -> Array:
    size = memory.itemsize
    begin = first * size if 0 not in shape else 0
    steps = [step * size for step in strides]  # `as_strided` takes no dtype of ml_dtypes
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, begin, steps)


def _view_like(view: Array, memory: Array, other: Array) -> Array:
    """Return the view of `other` that `view` is of `memory`."""
    first = view.ctypes.data - memory.ctypes.data
    return np.ndarray(view.shape, view.dtype, other.view(np.uint8).data, first, view.strides)


def bits(array: Array) -> Array:
    flat = np.array(array, order="C").reshape(-1)
    return flat.view(np.uint8).reshape(*array.shape, array.itemsize)


def first_difference(got: Array, expected: Array) -> tuple[int, ...] | None:
    """Return the index of the first element whose bits differ."""
    found = np.argwhere((got != expected).any(axis=-1))
    return tuple(map(int, found[0])) if len(found) else None
