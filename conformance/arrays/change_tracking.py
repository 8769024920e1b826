"""Detects changes of converted arguments, and of the memory around them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from conformance.arrays.guard_bands import Array, offset_of, poisoned, same_view
from conformance.values.aliases import address_of
from conformance.values.comparison import as_bytes, first_unequal, torch_dtype
from conformance.values.differences import Difference, Verdict

_Held: TypeAlias = list[Any] | dict[Any, Any]
"""A snapshot of the contents of a list, a dict, a set or an object."""


@dataclasses.dataclass
class Memory:
    """The memory that arrays lie in.

    Attributes:
        path: The first argument that lies in it.
        drawn: The drawn memory, with the opposite sign if it is negated.
        converted: The converted memory.
        as_numpy: The converted memory as NumPy sees it; None on a device.
        is_negated: Whether the arguments are lazy negations of it.
        source: The memory of the drawn arrays, which keeps its id from being reused.
        shown: Shape, offset and strides, in elements, of each argument that lies in it.
    """

    path: str
    drawn: Array
    converted: Array | torch.Tensor
    as_numpy: Array | None
    is_negated: bool
    source: Array
    shown: list[tuple[tuple[int, ...], int, list[int]]] = dataclasses.field(default_factory=list)

    def view(self, array: Array) -> Array | torch.Tensor:
        """Return the view of the converted memory that corresponds to a drawn array."""
        offset = offset_of(array) // array.itemsize
        strides = [stride // array.itemsize for stride in array.strides]
        self.shown.append((array.shape, offset, strides))
        if isinstance(self.converted, torch.Tensor):
            tensor = self.converted.as_strided(array.shape, strides, offset)
            # torch has no public name for it
            return torch._neg_view(tensor) if self.is_negated else tensor  # noqa: SLF001
        view = same_view(array, self.converted)
        view.flags.writeable = array.flags.writeable
        return view

    def covered(self) -> Array:
        """Return a mask of the elements that arguments cover; the others are guard bands."""
        seen = np.zeros(self.drawn.shape, np.bool_)
        for shape, offset, strides in self.shown:
            np.ndarray(shape, np.bool_, seen.data, offset, strides)[...] = True
        return seen

    def is_as_drawn(self) -> bool:
        """Return whether no byte of the converted memory has changed."""
        if self.as_numpy is None:
            return bool((as_bytes(self.drawn) == as_bytes(self.converted)).all())
        return self.drawn.tobytes() == self.as_numpy.tobytes()

    def write(self, values: Array) -> None:
        """Overwrite the converted memory, through NumPy if possible: torch does not notice that."""
        if self.as_numpy is not None:
            self.as_numpy[...] = values
        elif isinstance(self.converted, torch.Tensor):
            self.converted.copy_(flat_tensor(values, "cpu"))

    def holds(self, address: int) -> bool:
        """Return whether an address lies in the converted memory."""
        first = address_of(self.converted)
        return first <= address < first + self.converted.nbytes


@dataclasses.dataclass(frozen=True)
class _TrackedArray:
    """An array that was converted.

    Attributes:
        path: Its path.
        drawn: The drawn array.
        converted: The converted array.
        memory: The memory that it lies in.
        layout: Its address, shape and strides when it was converted.
    """

    path: str
    drawn: Array
    converted: Array | torch.Tensor
    memory: Memory
    layout: tuple[object, ...]


class ChangeTracker:
    """Records the state of converted arguments, and finds later changes.

    Attributes:
        memories: The memories of arrays, by the id of the drawn one and the place of the copy.
    """

    def __init__(self) -> None:
        self.memories: dict[tuple[int, str], Memory] = {}
        self._arrays: list[_TrackedArray] = []
        self._holders: list[tuple[str, Any, _Held]] = []
        self._paths: dict[int, str] = {}

    def track_array(self, path: str, drawn: Array, memory: Memory) -> Array | torch.Tensor:
        """Return the converted array, and record its layout."""
        converted = memory.view(drawn)
        self._arrays.append(_TrackedArray(path, drawn, converted, memory, _layout(converted)))
        return converted

    def track_holder(self, path: str, value: Any) -> None:
        """Record the contents of a list, a dict, a set or an object; ignore other values."""
        if isinstance(value, type | tuple):
            return
        if isinstance(value, list | dict | set) or hasattr(value, "__dict__"):
            self._holders.append((path, value, _held(value)))
            self._paths.setdefault(id(value), path)

    @contextlib.contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget the arguments converted inside the block when it ends."""
        memories, paths = dict(self.memories), dict(self._paths)
        num_arrays, num_holders = len(self._arrays), len(self._holders)
        views = [(memory, len(memory.shown)) for memory in memories.values()]
        try:
            yield
        finally:
            self.memories, self._paths = memories, paths
            del self._arrays[num_arrays:], self._holders[num_holders:]
            for memory, number in views:
                del memory.shown[number:]

    @contextlib.contextmanager
    def idle_step(self) -> Iterator[None]:
        """Set all elements of arguments to 0 inside, like a runner's buffers after an idle step."""
        contents = {}
        for memory in self.memories.values():
            zero = np.zeros((), memory.drawn.dtype)
            contents[id(memory.source)] = np.where(memory.covered(), zero, memory.drawn)
        with self.holding(contents):
            yield

    @contextlib.contextmanager
    def holding(self, contents: Mapping[int, Array]) -> Iterator[None]:
        """Write other contents to memories inside, as a caller that fills its buffers again.

        Args:
            contents: The contents, by the id of the drawn memory.
        """
        for memory in self.memories.values():
            memory.write(contents.get(id(memory.source), memory.drawn))
        try:
            yield
        finally:
            for memory in self.memories.values():
                memory.write(memory.drawn)

    def poison_arguments(self) -> None:
        """Overwrite all arguments, as a caller that reuses its buffers may do."""
        for memory in self.memories.values():
            memory.write(poisoned(memory.drawn.shape, memory.drawn.dtype))
        for _, holder, _ in self._holders:
            if isinstance(holder, list | dict | set):
                holder.clear()

    def owner(self, value: Any) -> str | None:
        """Return the path of the argument that an object is, or whose memory it is in, or None."""
        if not isinstance(value, np.ndarray | torch.Tensor):
            return self._paths.get(id(value))
        address = address_of(value)
        owners = (memory.path for memory in self.memories.values() if memory.holds(address))
        return next(owners, None) if address else None

    def unwritten(self, allowed: frozenset[str]) -> Iterator[Memory]:
        """Yield the memories without any argument that the function may change."""
        written = {id(one.memory) for one in self._arrays if argument_of(one.path) in allowed}
        return (one for one in self.memories.values() if id(one) not in written)

    def changed_holder(self, allowed: frozenset[str]) -> Difference | None:
        """Return the first difference of a list, a dict, a set or an object; see `changed`."""
        return next(self._changes_of_holders(allowed), None)

    def changed(self, allowed: frozenset[str]) -> Difference | None:
        """Return the first difference of the converted arguments from the drawn ones.

        Args:
            allowed: Names of arguments that the function may change.

        Returns:
            The first changed element of an argument, attribute of an object, or element of the
            memory around an argument; or None.
        """
        found = next(self._changes(allowed), None)
        return None if found is None else dataclasses.replace(found, verdict=Verdict.CHANGE)

    def _changes_of_holders(self, allowed: frozenset[str]) -> Iterator[Difference]:
        for path, holder, held in self._holders:
            if argument_of(path) not in allowed and not _are_same(held, holds := _held(holder)):
                yield from _holder_differences(path, held, holds)

    def _changes(self, allowed: frozenset[str]) -> Iterator[Difference]:
        """Yield differences: of lists and objects, of arrays, of the memory around these."""
        yield from self._changes_of_holders(allowed)
        changed = {id(one): one for one in self.memories.values() if not one.is_as_drawn()}
        for array in self._arrays:
            is_touched = id(array.memory) in changed or _layout(array.converted) != array.layout
            if is_touched and argument_of(array.path) not in allowed:
                yield from _array_differences(array.path, array.drawn, array.converted)
        for memory in changed.values():
            unequal = (as_bytes(memory.drawn) != as_bytes(memory.converted)).any(axis=-1)
            if argument_of(memory.path) in allowed:
                unequal &= ~memory.covered().reshape(-1)  # what it may write; not the guard bands
            if unequal.any():
                where = f"memory around {memory.path}"
                at = (int(np.flatnonzero(unequal)[0]),)
                yield Difference(Verdict.VALUE, where, at, "changed", "as it was")


def flat_tensor(array: Array, device: str) -> torch.Tensor:
    """Return a flat tensor on a device with the bytes of a C-contiguous array."""
    data = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(torch_dtype(array.dtype))
    return data.to(device)


@functools.lru_cache(4096)
def argument_of(path: str) -> str:
    """Return the argument that a path begins with.

    >>> argument_of("ubatch_slices[0].token_slice"), argument_of("self.seq_lens")
    ('ubatch_slices', 'self')
    """
    return path.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0]


def _layout(array: Array | torch.Tensor) -> tuple[object, ...]:
    """Return the address, the shape and the strides of an array."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr(), array.shape, array.stride()
    return array.__array_interface__["data"][0], array.shape, array.strides


def _held(holder: Any) -> _Held:
    """Return a snapshot of the contents of a list, a dict, a set or an object."""
    if isinstance(holder, list):
        return holder.copy()
    if isinstance(holder, set):
        return dict.fromkeys(holder)
    return dict(holder if isinstance(holder, dict) else vars(holder))


def _are_same(before: _Held, after: _Held) -> bool:
    """Return whether all entries or attributes are the same objects."""
    if isinstance(before, list) or isinstance(after, list):
        return len(before) == len(after) and all(map(operator.is_, before, after))
    are_same = map(operator.is_, before.values(), after.values())
    return list(before) == list(after) and all(are_same)


def _holder_differences(path: str, old: _Held, new: _Held) -> Iterator[Difference]:
    """Yield the entries or attributes that are no longer the same objects."""
    before, after = (dict(enumerate(x)) if isinstance(x, list) else x for x in (old, new))
    if list(before) != list(after):
        yield Difference(Verdict.SHAPE, f"list({path})", None, list(after), list(before))
        return
    for key, value in after.items():
        if value is not before[key]:
            where = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"
            yield Difference(Verdict.IDENTITY, where, None, "another object", "as it was")


def _array_differences(
    path: str, drawn: Array, converted: Array | torch.Tensor
) -> Iterator[Difference]:
    """Yield the changed shape of an array, or else its first changed element."""
    if tuple(converted.shape) != drawn.shape:
        yield Difference(Verdict.SHAPE, f"{path}.shape", None, tuple(converted.shape), drawn.shape)
        return
    index = first_unequal(drawn, converted)
    if index is not None:
        got = converted[index].item()
        yield Difference(Verdict.VALUE, path, index, got, drawn[index].item())
