"""The environment variable KVTWIN_VLLM, which selects the functions to replace.

| value | replaced |
|---|---|
| not set, empty, or `on` | all |
| `off` | none |
| `split_attn_metadata,compute_slot_mapping` | only these |
| `-split_attn_metadata,-compute_slot_mapping` | all others |
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

VARIABLE: Final = "KVTWIN_VLLM"


def read_selection(names: Collection[str], value: str | None = None) -> frozenset[str]:
    """Return the names of the functions to replace.

    Args:
        names: The names of all functions that can be replaced.
        value: The value of the variable; None: that in the environment.

    Raises:
        ValueError: A name is unknown, or only some names have a minus.
    """
    if value is None:
        value = os.environ.get(VARIABLE, "")
    if value in {"", "on"}:
        return frozenset(names)
    if value == "off":
        return frozenset()
    given = [name.strip() for name in value.split(",") if name.strip()]
    excluded = [name[1:] for name in given if name.startswith("-")]
    if excluded and len(excluded) < len(given):
        raise ValueError(
            f"{VARIABLE} is {value!r}, expected a minus before every name or before none"
        )
    for name in excluded or given:
        if name not in names:
            raise ValueError(
                f"{VARIABLE} has {name!r}, expected on, off, or names of {', '.join(names)}"
            )
    return frozenset(names).difference(excluded) if excluded else frozenset(given)
