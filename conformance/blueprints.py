"""What cannot be drawn as data: a class, a backend, a layer, drawn as how to make it on a side.

A blueprint stands in a call's arguments in the place of the thing. The `Carrier` makes the thing
on each side out of that side's implementation, and makes it once: a blueprint that stands in two
places is one object there.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.conversion import Carrier


class Blueprint(abc.ABC):
    """How to make an object on a side.

    A subclass is a dataclass whose fields are what the two sides' objects have in common. What it
    makes is compared by class name, or, where its class has an attribute `compared`, by the
    attributes that this names.
    """

    @abc.abstractmethod
    def make(self, carrier: Carrier) -> Any:
        """Return the object.

        Args:
            carrier: The side: `carrier.implementation` is its module, `carrier.device` the device
                of its tensors (None where arrays are NumPy's), `carrier.carry(value, path)` copies
                a drawn value there.
        """


@dataclasses.dataclass(frozen=True)
class Device(Blueprint):
    """The device of a side's tensors, for an argument `device`.

    >>> from conformance.targets import TARGETS
    >>> TARGETS["host"].carrier().carry(DEVICE, "device")
    'cpu'
    """

    def make(self, carrier: Carrier) -> str | None:
        """Return the type of device, None where there is none."""
        return carrier.device


DEVICE = Device()
"""The only one that there need be."""
