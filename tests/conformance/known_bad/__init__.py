"""Plausible wrong implementations, each of which the conformance run must catch."""

from known_bad.entries import KnownBad
from known_bad.slots import SLOTS

ENTRIES: list[KnownBad] = [*SLOTS]

__all__ = ["ENTRIES", "KnownBad"]
