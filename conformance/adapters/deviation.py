"""Known, intended deviations: declared by an adapter, and shown by a witness call."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Deviation:
    r"""An intended difference between an implementation and `reference`.

    Examples that fail as declared do not fail the run, and the search for other failures goes on.
    If the witness no longer fails as declared, the run fails until the declaration is removed.

    Attributes:
        function: The function that deviates.
        reason: Why it does, as the run prints it.
        witness: The arguments of a call that shows it, as `reference` takes them: NumPy arrays and
            its own objects. The call may be invalid.
        fails: A regular expression that is found in the line of each failure that this explains:
            `result.dtype = torch.int64`. The narrower it is, the less it hides.
        names: If the witness is invalid: its error message must contain one of these names.

    >>> wide = Deviation("f", "kernels want int64", {}, r"dtype = torch\.int64")
    >>> wide.explains("f on host: result.dtype = torch.int64, but should be torch.int32")
    True
    >>> wide.explains("f on host: result[0] = 1, but should be 0")
    False
    """

    function: str
    reason: str
    witness: Mapping[str, Any]
    fails: str
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.reason or not self.fails:
            raise ValueError(f"the deviation of {self.function} needs a `reason` and a `fails`")
        re.compile(self.fails)

    def explains(self, line: str) -> bool:
        """Return whether the line of a failure is about this deviation."""
        return re.search(self.fails, line) is not None
