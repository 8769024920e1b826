"""The simulator's own exceptions; it also raises Python's IndexError, OverflowError and others."""


class RaceError(Exception):
    """Two threads accessed an element without synchronisation, and at least one stored to it."""


class BarrierError(Exception):
    """Not all threads reached the same barrier, or one passed a wrong mask."""


class UninitializedReadError(Exception):
    """A read of shared or local memory that was never written."""
