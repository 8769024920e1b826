"""How an implementation's objects become ours, and ours become its: one small module for each.

`base` has the class to extend, `fast` is the worked example. `conformance.adapters.NAME` is found
by the name of the implementation, any other module or file by `--adapter`, or as the
implementation's own `CONFORMANCE_ADAPTER`. Each has an `ADAPTER`, which extends `base.Adapter`.
"""

from conformance.adapters.base import Adapter, supplied
from conformance.adapters.deviation import Deviation

__all__ = ["Adapter", "Deviation", "supplied"]
