"""What is written to `out`, as one does it in a hurry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

LENGTHS = {
    "out is filled with a copy": "The right values; a captured graph reads the old ones.",
    "behind the lengths out stays as it was": "Padded requests have the last step's lengths.",
    "all of out is returned": "Right while no request is padded.",
}
"""Bugs of an `out` that may be longer."""

ROWS = {
    "out is filled with a copy": "The right values; a captured graph reads the old ones.",
    "out's own rows are returned as a view": "Equal; but no longer the caller's object.",
}
"""Bugs of an `out` that is rows."""

REFUSALS = {"an out of another dtype is cast": "torch's `copy_` casts; the next reader does not."}
"""Bugs of what is refused."""


def with_out(
    bug: str | None, real: Callable[..., Any], new: Callable[..., Any]
) -> Callable[..., Any]:
    """Return an implementation that writes to `out`, if it is there, what `new` gives.

    Args:
        bug: One of this module's, or another.
        real: Refuses what is to be refused.
        new: Has no `out`.
    """

    @functools.wraps(real)  # the harness reads from the signature which hints it takes
    def call(*args: Any, out: Any = None, **keywords: Any) -> Any:  # noqa: ANN401  # whatever a caller gives
        if out is None:
            return new(*args, **keywords)
        before = out.clone() if isinstance(out, torch.Tensor) else None
        try:
            real(*args, out=out, **keywords)
        except TypeError:
            if before is None or bug != "an out of another dtype is cast":
                raise
            return out.copy_(new(*args, **keywords))
        out.copy_(before)
        made = new(*args, **keywords)
        if bug == "out is filled with a copy":
            return made
        out[: len(made)] = made
        if bug != "behind the lengths out stays as it was":
            out[len(made) :] = 0
        is_view = len(out) > len(made) or bug == "out's own rows are returned as a view"
        is_cut = is_view and bug != "all of out is returned"
        return out[: len(made)] if is_cut else out

    return call
