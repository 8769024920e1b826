"""The functions that have checks, by name: what `--functions` may name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from conformance.checks import checks_in
from conformance.lists import names_in, near


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
        ValueError: A name of which there is no check, or no name at all.
    """
    if names is None:
        return None
    known, chosen = checked_functions(), []
    try:
        wanted = names_in(names)
    except ValueError as error:
        raise ValueError(f"--functions {error}") from error
    for name in wanted:
        found = [other for other in known if other == name or other.startswith(f"{name}.")]
        if not found:
            raise ValueError(
                f"function {name!r} is unknown; there are {len(known)}, such as {near(name, known)}"
            )
        chosen += found
    return list(dict.fromkeys(chosen))
