"""Known, intended deviations: declared by an adapter, and shown by a witness call."""

from __future__ import annotations

import dataclasses
import re

from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class Deviation:
    r"""An intended difference between an implementation and `reference`.

    Examples that fail as declared do not fail the run, and the search for other failures goes on.
    If the witness no longer fails as declared, the run fails until the declaration is removed.

    If the messages of an implementation do not contain the invalid element and value, as those of
    `reference` do, it declares a deviation whose `fails` is `"wrong error message"`.

    Attributes:
        function: The function that deviates.
        reason: Why it does, as the run prints it.
        witness: A call, valid or invalid, that shows it.
        fails: A regular expression that matches in the message of each failure that this explains:
            `result.dtype = torch.int64`. The narrower it is, the less it hides.
        names: If the witness is invalid: its error message must contain one of these names.

    >>> from conformance.values.call import Call
    >>> wide = Deviation("f", "kernels want int64", Call("f", {}), r"dtype = torch\.int64")
    >>> wide.explains(AssertionError("result.dtype = torch.int64, but should be torch.int32"))
    True
    >>> wide.explains(AssertionError("result[0] = 1, but should be 0"))
    False
    """

    function: str
    reason: str
    witness: Call
    fails: str
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.reason or not self.fails:
            raise ValueError(f"the deviation of {self.function} needs a `reason` and a `fails`")
        re.compile(self.fails)

    def explains(self, error: BaseException) -> bool:
        """Return whether a failure, or its cause, is this deviation."""
        difference = getattr(error, "difference", None)  # its message breaks long lines
        texts = (str(error), getattr(difference, "line", ""))
        if any(re.search(self.fails, text) for text in texts):
            return True
        return error.__cause__ is not None and self.explains(error.__cause__)
