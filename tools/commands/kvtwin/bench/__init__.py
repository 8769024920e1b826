"""Time the hot functions of `fast`, `reference` and a baseline: `kvtwin bench`."""
