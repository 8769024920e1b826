"""Prepared calls of a target: arguments are converted first, and only the function is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from conformance.targets.target import Target


def array_of(target: Target, array: np.ndarray[Any, Any]) -> Any:
    """Return a copy of an array as a target takes it, on its device."""
    return target.array(np.ascontiguousarray(array).copy())


def host_array_of(target: Target, array: np.ndarray[Any, Any]) -> Any:
    """Return a copy of an array as a target takes it on the host."""
    copied = np.ascontiguousarray(array).copy()
    return copied if target.device is None else torch.from_numpy(copied)


def make(target: Target, class_name: str, **fields: Any) -> Any:
    """Return an object for an argument, which `prepare` converts."""
    adapter = target.implementation.adapter
    new = adapter.new if target.implementation.offers(class_name) else adapter.made
    return new(class_name, **fields)


def prepare(target: Target, function: str, *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Return a call without arguments, which is timed without the adapter's work.

    An adapter with a method `prepare(function, *args, **kwargs)` makes the call itself, from
    arguments that are converted.

    Args:
        target: The implementation to call.
        function: The function, by its name in `reference`.
        args: Positional arguments in our types; for a method, its object first.
        kwargs: Keyword arguments, likewise.

    >>> from conformance.targets.target import TARGETS
    >>> prepare(TARGETS["host"], "extract_layer_index", "layers.3.attn")()
    3
    """
    adapter = target.implementation.adapter
    names: Mapping[str, str] = adapter.parameters.get(function, {})
    given = tuple(adapter.theirs(value) for value in args)
    named = {names.get(name, name): adapter.theirs(value) for name, value in kwargs.items()}
    own = getattr(adapter, "prepare", None)
    if own is not None:
        prepared: Callable[[], Any] = own(function, *given, **named)
        return prepared
    found = target.find(function)
    return lambda: found(*given, **named)


def result_of(
    target: Target, function: str, returned: Any, arguments: Mapping[str, Any] | None = None
) -> Any:
    """Convert the result of a call to the form of `reference`, for comparison."""
    return target.implementation.adapter.result(function, returned, arguments or {})
