"""The adapter of `fast`, and the worked example: an implementation whose objects are ours.

`fast` has `reference`'s classes by the same names and with the same fields, tensors in place of
arrays, and takes a caller's own objects with these attributes. Nothing needs conversion, so an
implementation without an adapter has this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.adapters.base import Adapter


class FastAdapter(Adapter):
    """Hands everything on as it is.

    >>> import fast
    >>> FastAdapter(fast).function("compute_slot_mapping") is fast.compute_slot_mapping
    True
    """

    def function(self, name: str) -> Callable[..., Any]:
        """Return the implementation's own function; of a property, the function of `self`."""
        found: Any = self.find(name)
        function: Any = found.fget if isinstance(found, property) else found
        return function  # type: ignore[no-any-return]  # a module's attribute

    def new(self, class_name: str, **fields: Any) -> Any:
        """Return an object of the implementation's class of this name."""
        return self.find(class_name)(**fields)


ADAPTER = FastAdapter
