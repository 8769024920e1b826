"""Adapters: they convert between the objects of an implementation and those of `reference`.

`base` has the class to extend. `--adapter` takes a module or file whose `ADAPTER` is the subclass.
Without it, the implementation's attribute `CONFORMANCE_ADAPTER` is used.
"""

from conformance.adapters.base import (
    Adapter,
    Deviation,
    FastAdapter,
    Unsupported,
    is_given,
    supplied,
)

__all__ = ["Adapter", "Deviation", "FastAdapter", "Unsupported", "is_given", "supplied"]
