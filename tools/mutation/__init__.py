"""Mutation testing of `fast` with the conformance checks as its judge; `python -m tools.mutate`."""
