"""Moved to the adapters."""

from conformance.adapters.implementations import (
    FAST,
    NAMES,
    Absent,
    Implementation,
    is_of_fast,
    load_implementation,
    load_implementations,
)

__all__ = [
    "FAST",
    "NAMES",
    "Absent",
    "Implementation",
    "is_of_fast",
    "load_implementation",
    "load_implementations",
]
