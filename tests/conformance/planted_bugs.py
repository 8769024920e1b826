"""Bugs that are made of the function whose place they take."""

from collections.abc import Callable
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., Any]


def after(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Change what the function returns, in place or by returning something else."""

    def make_bug(function: Function) -> Function:
        def broken(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # takes any function's place
            result = function(*args, **kwargs)
            changed = change(result)
            return result if changed is None else changed

        return broken

    return make_bug


def never(_: Function) -> Function:
    """Do nothing."""
    return lambda *_args, **_kwargs: None
