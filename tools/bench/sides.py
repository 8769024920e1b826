"""The implementations that are timed: `fast`, `reference`, a baseline; each has its own objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import fast
import reference
from conformance.adapters.fast import FastAdapter
from conformance.implementations import Implementation


class Side:
    """An implementation on a device, and how to speak with it.

    Args:
        name: What it is called in tables.
        implementation: The module and its adapter.
        device: Of its tensors; None where arrays are NumPy's.

    Example:
        >>> side = Side("fast", Implementation("fast", fast, FastAdapter(fast)), "cpu")
        >>> side.array(np.arange(2))
        tensor([0, 1])
        >>> side.has("split_attn_metadata"), side.has("split_hairs")
        (True, False)
    """

    def __init__(self, name: str, implementation: Implementation, device: str | None) -> None:
        self.name = name
        self.implementation = implementation
        self.device = device

    def has(self, function: str) -> bool:
        """Say whether it has a function, or a method written `Class.method`."""
        try:
            self.implementation.adapter.find(function)
        except AttributeError:
            return False
        return True

    def array(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy of an array as it takes them, on its device."""
        copied = np.ascontiguousarray(array).copy()
        return copied if self.device is None else torch.from_numpy(copied).to(self.device)

    def on_host(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy of an array as it takes them on the host."""
        copied = np.ascontiguousarray(array).copy()
        return copied if self.device is None else torch.from_numpy(copied)

    def make(self, class_name: str, **fields: Any) -> Any:
        """Return an object of its class of this name, or of what its adapter makes of ours."""
        adapter = self.implementation.adapter
        if type(adapter) is FastAdapter and self.has(class_name):
            return adapter.find(class_name)(**fields)
        return adapter.theirs(adapter.made(class_name, **fields))

    def call(self, function: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Return a call without arguments: what is timed, nothing of an adapter in it.

        Args:
            function: By our name.
            args: Our arguments by position, for a method its object first.
            kwargs: Those by name.
        """
        adapter = self.implementation.adapter
        found = adapter.find(function)
        names: Mapping[str, str] = adapter.parameters.get(function, {})
        given = tuple(adapter.theirs(value) for value in args)
        named = {names.get(name, name): adapter.theirs(value) for name, value in kwargs.items()}
        return lambda: found(*given, **named)

    def answer(self, function: str, answered: Any, arguments: Mapping[str, Any]) -> Any:
        """Return what a call answered as `reference` would, for comparison."""
        return self.implementation.adapter.result(function, answered, arguments)


REFERENCE = Side(
    "reference", Implementation("reference", reference, FastAdapter(reference)), device=None
)


def fast_side(device: str) -> Side:
    """Return the side of `fast`."""
    return Side("fast", Implementation("fast", fast, FastAdapter(fast)), device)
