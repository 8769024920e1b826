"""Mutation testing of `fast` with the conformance checks; `python -m tools.mutate`."""
