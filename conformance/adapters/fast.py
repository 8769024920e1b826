"""The adapter of `fast`, and the worked example: an implementation whose objects are ours.

`fast` has `reference`'s classes by the same names and with the same fields, tensors in place of
arrays, and takes a caller's own objects with these attributes. Nothing needs translation, so this
is what an implementation without an adapter is taken for. What remains to be said is how the
harness comes by an object of its: by calling the class of the same name.
"""

from __future__ import annotations

from typing import Any

from conformance.adapters.base import Adapter


class FastAdapter(Adapter):
    """Takes objects as they are.

    >>> import fast
    >>> FastAdapter(fast).namespace() is fast
    True
    """

    def namespace(self) -> Any:
        """Return the module itself: what it offers is looked up there, by our names."""
        return self.module


ADAPTER = FastAdapter
