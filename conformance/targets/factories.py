"""Factories of objects that cannot be drawn as data: classes, backends, layers.

A call's arguments hold a factory in place of the object. `Converter` calls it once for each
implementation: a factory that occurs in two places gives one object.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Protocol

from conformance.targets.implementations import Implementation


class FactoryContext(Protocol):
    """The context in which a factory makes an object for an implementation.

    Attributes:
        implementation: The implementation.
        device: The device of its tensors; None for NumPy arrays.
    """

    implementation: Implementation
    device: str | None

    def convert(self, value: Any, path: str) -> Any:
        """Return the implementation's own copy of a drawn value at a path."""


class Factory(abc.ABC):
    """Makes an object for an implementation.

    A subclass is a dataclass; its fields are the data that all implementations' objects share.
    The objects are compared by class name, or by the attributes that their class lists in
    `compared`.
    """

    @abc.abstractmethod
    def make(self, converter: FactoryContext) -> Any:
        """Return the object for the implementation of a converter."""


@dataclasses.dataclass(frozen=True)
class Device(Factory):
    """The device of an implementation's tensors, for an argument `device`.

    >>> from conformance.targets.target import TARGETS
    >>> TARGETS["host"].converter().convert(DEVICE, "device")
    'cpu'
    """

    def make(self, converter: FactoryContext) -> str | None:
        """Return the type of device, or None."""
        return converter.device


DEVICE = Device()
"""The only instance needed."""
