"""An implementation of one function."""

from fast import compute_slot_mapping

__all__ = ["compute_slot_mapping"]
