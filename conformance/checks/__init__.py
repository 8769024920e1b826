"""The tests that are made from contracts; `functions` has the list of all functions."""
