"""Adapters: they convert between the objects of an implementation and those of `reference`.

`base` has the class to extend. `--adapter` names a module or file that has it as `ADAPTER`.
Otherwise it is the attribute `CONFORMANCE_ADAPTER` of the implementation.
"""

from conformance.adapters.base import Adapter, FastAdapter, Unsupported, is_given, supplied
from conformance.adapters.deviation import Deviation
from conformance.values.call import Call

__all__ = ["Adapter", "Call", "Deviation", "FastAdapter", "Unsupported", "is_given", "supplied"]
