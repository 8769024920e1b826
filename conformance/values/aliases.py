"""Aliasing: where arrays lie in memory, and which parts of a result share memory with arguments."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from conformance.values.call import Arguments, Call
from conformance.values.differences import Difference, Verdict
from conformance.values.parts import arrays_in, child_path, children


def address_of(array: Any) -> int:
    """Return the address of the first element of an array or tensor; 0 if it has no elements."""
    if isinstance(array, torch.Tensor):
        return array.data_ptr() if array.numel() else 0
    return int(array.__array_interface__["data"][0]) if array.size else 0


def strides_of(array: Any) -> tuple[int, ...]:
    """Return the strides of an array or tensor, in bytes.

    >>> strides_of(np.zeros((2, 3))), strides_of(torch.zeros(2, 3))
    ((24, 8), (12, 4))
    """
    if isinstance(array, torch.Tensor):
        return tuple(stride * array.element_size() for stride in array.stride())
    return tuple(array.strides)


def owner_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array that owns the memory of an array.

    >>> a = np.zeros(6)
    >>> owner_of(a[1:].reshape(5, 1)) is a
    True
    """
    owner: Any = array
    while isinstance(owner.base, np.ndarray | memoryview):
        owner = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    return owner  # type: ignore[no-any-return]  # a base is an array here


def memory_of(array: Any) -> int:
    """Return the start address of the memory that an array or tensor is a view of.

    >>> a, t = np.zeros(4), torch.zeros(4)
    >>> memory_of(a[2:]) == address_of(a), memory_of(t[2:]) == address_of(t)
    (True, True)
    """
    if isinstance(array, torch.Tensor):
        return array.untyped_storage().data_ptr()
    return address_of(owner_of(array))


def share_memory(a: Any, b: Any) -> bool:
    """Return whether two tensors have the same storage, or two NumPy arrays overlap.

    >>> a = torch.zeros(4)
    >>> share_memory(a[:2], a[2:]), share_memory(a, torch.zeros(4)), share_memory(a, a[:0])
    (True, False, False)
    """
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        is_empty = not (a.numel() and b.numel())
        return not is_empty and memory_of(a) == memory_of(b)
    is_numpy = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return is_numpy and bool(np.shares_memory(a, b))


class Relation(enum.Enum):
    """How a part of a result aliases an argument."""

    SAME = "the same object"
    VIEW = "a view"


@dataclasses.dataclass(frozen=True)
class Alias:
    """A rule of the definition: a part of the result is an argument, or a view of it.

    Any part without such a rule must be a new object in new memory.

    Attributes:
        result: The part of the result, or of each of its entries if it is a list or a dict, as an
            attribute path; "" is the result itself.
        relation: How it aliases the argument.
        argument: The argument, as an attribute path that begins with its name.
        applies: Whether the rule applies to a call.
    """

    result: str
    relation: Relation
    argument: str
    applies: Callable[[Call], bool] = lambda _: True

    def differences(self, result: object, arguments: Arguments) -> Iterator[Difference]:
        """Yield the parts of a result that break the rule."""
        if not isinstance(result, list | dict):
            yield from self._differences(result, arguments, "result")
            return
        for key, entry in children(result).items():
            yield from self._differences(entry, arguments, child_path("result", key, is_entry=True))

    def _differences(self, result: object, arguments: Arguments, path: str) -> Iterator[Difference]:
        part = _follow(result, self.result)
        if is_supplied(part):
            return
        name, _, rest = self.argument.partition(".")
        argument = _follow(arguments[name], rest)
        if argument is None:
            return
        if self.relation is Relation.SAME:
            is_so = part is argument
        else:
            is_so = 0 in part.shape or share_memory(part, argument)
        if not is_so:
            path += f".{self.result}" if self.result else ""
            is_same = self.relation is Relation.SAME
            expected = f"{self.argument} itself" if is_same else f"a view of {self.argument}"
            yield Difference(Verdict.IDENTITY, path, None, "another object", expected)


def views_of(argument: str, *fields: str) -> tuple[Alias, ...]:
    """Return the rules that fields of a result are views of the same fields of an argument."""
    return tuple(Alias(field, Relation.VIEW, f"{argument}.{field}") for field in fields)


def _follow(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = getattr(value, name)
    return value


def shared_memory(first: object, second: object, path: str = "result") -> Difference | None:
    """Return the first array of a result that lies in the memory of another result.

    >>> a, b = torch.zeros(3), torch.zeros(3)
    >>> shared_memory((a, b), (a[1:], b.clone())).line
    "result[0] = the memory of another call's result, but should be its own memory"
    """
    taken = [array for _, array in arrays_in(first, path)]
    storages = {memory_of(array) for array in taken if isinstance(array, torch.Tensor)}
    for where, array in arrays_in(second, path):
        # Results may have thousands of tensors, most of them in storages of their own.
        if isinstance(array, torch.Tensor) and memory_of(array) not in storages:
            continue
        if any(share_memory(array, other) for other in taken):
            got = "the memory of another call's result"
            return Difference(Verdict.IDENTITY, where, None, got, "its own memory")
    return None


_MARK = "kvtwin_is_supplied"


def supplied(tensor: torch.Tensor, *, is_known: bool = True) -> torch.Tensor:
    """Return a CPU copy of a tensor, as a placeholder for a field that an implementation lacks.

    Its values are compared, unless they are a guess. Its memory is not compared, since the adapter
    allocated it.

    Args:
        tensor: The values.
        is_known: Whether they are derived from fields of the implementation, and are no guess.

    >>> is_supplied(supplied(torch.arange(3))), is_supplied(torch.arange(3))
    (True, False)
    """
    copied = tensor.detach().to("cpu", copy=True)
    setattr(copied, _MARK, is_known)
    return copied


def is_supplied(value: object) -> bool:
    """Return whether a value is a placeholder from `supplied`."""
    return isinstance(value, torch.Tensor) and hasattr(value, _MARK)


def is_guessed(value: object) -> bool:
    """Return whether a value is a placeholder whose values are a guess.

    >>> is_guessed(supplied(torch.arange(3), is_known=False)), is_guessed(torch.arange(3))
    (True, False)
    """
    return isinstance(value, torch.Tensor) and not getattr(value, _MARK, True)
