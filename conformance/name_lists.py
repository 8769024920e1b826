"""Parses the comma-separated lists of names in options, and suggests names for typos."""

from __future__ import annotations

import difflib
from collections.abc import Collection

LIMIT = 5
"""How many names a message suggests."""


def names_in(text: str) -> list[str]:
    """Return the names in a comma-separated list, without duplicates, in order.

    >>> names_in("host, native,host,")
    ['host', 'native']
    """
    found = list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
    if not found:
        raise ValueError(f"{text!r} contains no name")
    return found


def near(name: str, known: Collection[str]) -> str:
    """Return a few known names, those most similar to an unknown one.

    >>> near("slot", ["blocks", "slots", "compute_slot_mapping"])
    'slots, compute_slot_mapping'
    """
    inside = [other for other in known if name and name.lower() in other.lower()]
    inside.sort(key=lambda other: (not other.lower().startswith(name.lower()), other))
    close = difflib.get_close_matches(name, known, LIMIT, 0.5)
    found = list(dict.fromkeys([*inside, *close])) or list(known)
    return ", ".join(found[:LIMIT])
