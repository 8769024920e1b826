"""What cannot be drawn as data: a class, a backend, a layer, drawn as how to make it on a side.

A blueprint stands in a call's arguments in the place of the thing. The `Carrier` makes the thing
on each side out of that side's implementation, and makes it once: a blueprint that stands in two
places is one object there.
"""

from __future__ import annotations

import abc
import dataclasses
from types import ModuleType
from typing import Any, Protocol


class Converter(Protocol):
    """What a blueprint needs to know of the implementation for which it makes an object.

    Attributes:
        implementation: The module.
        device: The device of its tensors; None where arrays are NumPy's.
    """

    implementation: ModuleType
    device: str | None

    def carry(self, value: Any, path: str) -> Any:
        """Return the implementation's own copy of a drawn value.

        Args:
            value: The value.
            path: Where it stands in the call, for reports.
        """


class Blueprint(abc.ABC):
    """How to make an object on a side.

    A subclass is a dataclass whose fields are what the two sides' objects have in common. What it
    makes is compared by class name, or, where its class has an attribute `compared`, by the
    attributes that this names.
    """

    @abc.abstractmethod
    def make(self, carrier: Converter) -> Any:
        """Return the object.

        Args:
            carrier: Of the implementation that the object is made for.
        """


@dataclasses.dataclass(frozen=True)
class Device(Blueprint):
    """The device of a side's tensors, for an argument `device`.

    >>> from conformance.targets import TARGETS
    >>> TARGETS["host"].carrier().carry(DEVICE, "device")
    'cpu'
    """

    def make(self, carrier: Converter) -> str | None:
        """Return the type of device, None where there is none."""
        return carrier.device


DEVICE = Device()
"""The only one that there need be."""
