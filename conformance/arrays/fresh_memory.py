"""Moved to the harness."""

from conformance.harness.fresh_memory import filled_memory, filled_tensors

__all__ = ["filled_memory", "filled_tensors"]
