"""The simulator's own exceptions; it also raises Python's IndexError, OverflowError and others."""


class RaceError(Exception):
    """Two threads touched one element, one of them storing, with nothing to order them."""


class BarrierError(Exception):
    """A barrier or a warp operation that not all of its threads reached, or not alike."""


class UninitializedReadError(Exception):
    """A value was read that was never written: in shared or local memory, or of an absent lane."""
