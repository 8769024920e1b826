"""Calls of an implementation, by name, looked up when they are made, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

Answer: TypeAlias = Any
"""What an implementation answers, of whatever kind."""


class Calls:
    """Calls an implementation, and remembers what was called last and how long it all took.

    Args:
        implementation: A module with the twins' names, or some of them.

    Attributes:
        last: The name of the last call, for the report when it raises.
        seconds: The time spent in calls.

    Example:
        >>> import math
        >>> call = Calls(math)
        >>> call("gcd", 12, 18), call.last
        (6, 'gcd')
    """

    def __init__(self, implementation: ModuleType) -> None:
        self.implementation = implementation
        self.last = ""
        self.seconds = 0.0

    def __call__(self, name: str, *args: object, **kwargs: object) -> Answer:
        """Call a function, or make an object of a class.

        Args:
            name: Of the function or class.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            What it returns.
        """
        self.last = name
        return self._timed(getattr(self.implementation, name), *args, **kwargs)

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
