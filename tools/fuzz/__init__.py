"""Nightly fuzzing: `python -m tools.fuzz`."""
