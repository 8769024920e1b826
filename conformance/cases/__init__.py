"""Stored cases: inputs as JSON files, which are replayed on any target."""
