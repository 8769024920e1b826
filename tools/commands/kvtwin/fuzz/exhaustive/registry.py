"""The registry of all scopes, by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from conformance.strategies.block_table import Session
from conformance.targets.target import Target
from kvtwin.fuzz.exhaustive import cuts, kinds, rewrites, slots, tables
from kvtwin.fuzz.exhaustive.comparing import Case
from kvtwin.fuzz.exhaustive.spaces import Scope

_MAKERS: Final[tuple[Callable[[int], Scope], ...]] = (
    *slots.SCOPES,
    *kinds.SCOPES,
    *cuts.SCOPES,
    *rewrites.SCOPES,
    *tables.SCOPES,
)


@functools.cache
def all_scopes(scale: int = 1) -> dict[str, Scope]:
    """Return all scopes at a scale, by name.

    Args:
        scale: How large their bounds are, one of `exhaustive.SCALES`.

    >>> all_scopes(0)["local lengths"].cases.count
    1548
    """
    scopes = [make(scale) for make in _MAKERS]
    return {scope.name: scope for scope in scopes}


def scopes_of(
    target: Target, scale: int = 1, functions: Sequence[str] | None = None
) -> dict[str, Scope]:
    """Return the scopes whose functions a target has.

    Args:
        target: The target.
        scale: How large the bounds are.
        functions: The functions to select; None for all. A class includes its methods.
    """
    return {
        name: scope
        for name, scope in all_scopes(scale).items()
        if not any(target.lacks(function) for function in scope.functions)
        and (functions is None or any(function in functions for function in scope.functions))
    }


def function_of(case: Case) -> str:
    """Return the function or the class that a case tests."""
    return case.constructor.function if isinstance(case, Session) else case.function
