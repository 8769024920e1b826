"""The functions that have checks, by name: what `--functions` may name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from conformance.checks import checks_in


def checked_functions() -> list[str]:
    """Return the functions that the conformance modules have checks of, sorted."""
    modules = [
        importlib.import_module(f"conformance.{path.stem}")
        for path in sorted(Path(__file__).parent.glob("test_*.py"))
    ]
    return sorted({check.function for module in modules for _, check in checks_in(vars(module))})


def choose_functions(names: str | None) -> Sequence[str] | None:
    """Return the functions that a comma-separated list names; None, which is all, for None.

    A class stands for its methods too.

    Raises:
        ValueError: A name of which there is no check.
    """
    if names is None:
        return None
    known, chosen = checked_functions(), []
    for name in names.split(","):
        found = [other for other in known if other == name or other.startswith(f"{name}.")]
        if not found:
            close = [other for other in known if name.lower() in other.lower()] or known[:3]
            raise ValueError(
                f"function {name!r} is unknown; there are {len(known)}, such as {', '.join(close)}"
            )
        chosen += found
    return chosen
