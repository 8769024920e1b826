"""Fuzzing for a time budget: `python -m tools.fuzz --help`."""
