"""The comma-separated lists of names that options take."""

from __future__ import annotations

import difflib
from collections.abc import Collection

LIMIT = 5
"""How many names a message suggests."""


def names_in(text: str) -> list[str]:
    """Return the names of a list, each once, in their order.

    Raises:
        ValueError: A list that names nothing.

    >>> names_in("host, sim,host,")
    ['host', 'sim']
    """
    found = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not found:
        raise ValueError(f"{text!r} names nothing")
    return found


def near(name: str, known: Collection[str]) -> str:
    """Return a few of the known names, those nearest to one that is unknown.

    >>> near("slot", ["blocks", "slots", "compute_slot_mapping"])
    'slots, compute_slot_mapping'
    """
    inside = [other for other in known if name and name.lower() in other.lower()]
    inside.sort(key=lambda other: (not other.lower().startswith(name.lower()), other))
    close = difflib.get_close_matches(name, known, LIMIT, 0.5)
    found = list(dict.fromkeys([*inside, *close])) or list(known)
    return ", ".join(found[:LIMIT])
