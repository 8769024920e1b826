"""Calls of an implementation, by name, looked up when they are made, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch

Answer: TypeAlias = Any
"""What an implementation answers, of whatever kind."""


class Calls:
    """Calls an implementation, and remembers what was called last and how long it all took.

    Args:
        implementation: A module with the twins' names, or some of them.
        device: Of its tensors; None where arrays are NumPy's, as in `reference`.

    Attributes:
        last: The name of the last call, for the report when it raises.
        seconds: The time spent in calls.

    Example:
        >>> import math
        >>> call = Calls(math)
        >>> call("gcd", 12, 18), call.last
        (6, 'gcd')
    """

    def __init__(self, implementation: ModuleType, device: str | None = None) -> None:
        self.implementation = implementation
        self.device = device
        self.last = ""
        self.seconds = 0.0

    def __call__(self, name: str, *args: object, **kwargs: object) -> Answer:
        """Call a function, or make an object of a class.

        Args:
            name: Of the function or class, or of a class' own method, `Class.method`.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        self.last = name
        return self._timed(self.look_up(name), *args, **kwargs)

    def look_up(self, name: str) -> Answer:
        """Return what now has a name, without noting that it is called.

        Args:
            name: Of a function or class, or of a class' own method, `Class.method`.

        Returns:
            It, for what an implementation calls back: a backend, a builder.
        """
        return attrgetter(name)(self.implementation)

    def array(self, array: np.ndarray[Any, np.dtype[Any]]) -> Answer:
        """Return an array of the implementation's kind, on its device.

        Args:
            array: Its values; the array itself may be what is returned.

        Returns:
            A NumPy array or a tensor.
        """
        return array if self.device is None else torch.from_numpy(array).to(self.device)

    def dtype(self, name: str) -> Answer:
        """Return a dtype of the implementation's kind.

        Args:
            name: As NumPy, `ml_dtypes` and torch have it.

        Returns:
            NumPy's or torch's.

        Example:
            >>> import reference, fast
            >>> Calls(reference).dtype("bfloat16"), Calls(fast, "cpu").dtype("bfloat16")
            (dtype(bfloat16), torch.bfloat16)
        """
        if self.device is None:
            return np.dtype(getattr(ml_dtypes, name, name))
        return getattr(torch, name)

    def method(self, owner: object, name: str, *args: object, **kwargs: object) -> Answer:
        """Call a method of an object that the implementation made.

        Args:
            owner: The object.
            name: Of the method.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        self.last = f"{type(owner).__name__}.{name}"
        return self._timed(getattr(owner, name), *args, **kwargs)

    def attribute(self, owner: object, name: str) -> Answer:
        """Read a property of an object that the implementation made.

        Args:
            owner: The object.
            name: Of the property.

        Returns:
            Its value.
        """
        self.last = f"{type(owner).__name__}.{name}"
        return self._timed(getattr, owner, name)

    def _timed(self, function: Callable[..., Answer], *args: object, **kwargs: object) -> Answer:
        """Call a function, and add the time that it takes."""
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - started
