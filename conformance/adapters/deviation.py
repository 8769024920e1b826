"""Known, intended deviations: declared by an adapter, and shown by a witness call."""

from __future__ import annotations

import dataclasses
import re

from conformance.values.call import Call


@dataclasses.dataclass(frozen=True)
class Deviation:
    r"""What an implementation does otherwise than `reference`, and means to.

    Examples that fail as declared do not fail the run, and the search for others goes on. The
    witness must fail as declared: once it does not, the run fails until the declaration is gone.

    An implementation whose messages do not name the element and the value at fault, as
    `reference`'s do, declares so with the `fails` of `"wrong error message"`.

    Attributes:
        function: The function that deviates.
        reason: Why it does, as the run prints it.
        witness: A call, valid or bad, that shows it.
        fails: A regular expression that is found in the message of each failure that this is the
            reason of: `result.dtype = torch.int64`. The narrower it is, the less it hides.
        names: For a bad call as witness, of which the message of its refusal must name one.

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
            raise ValueError(f"the deviation of {self.function} must say its reason, and its fails")
        re.compile(self.fails)

    def explains(self, error: BaseException) -> bool:
        """Return whether a failure, or what it came from, is this deviation."""
        difference = getattr(error, "difference", None)  # its message breaks long lines
        texts = (str(error), getattr(difference, "line", ""))
        if any(re.search(self.fails, text) for text in texts):
            return True
        return error.__cause__ is not None and self.explains(error.__cause__)
