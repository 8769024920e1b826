"""Time the hot functions of `fast`, `reference` and a baseline: `python -m tools.bench`."""
