"""Warm up the checked mode of `fast`."""


def warm_checked_mode() -> None:
    """Compile the loops of checked mode, which `fast.warmup` leaves to the first call."""
    from fast._native.compiler import COMPILED  # noqa: PLC0415  # the one place that knows

    for loop in COMPILED:
        loop._compile_bounds_checked()  # noqa: SLF001  # there is no other way
