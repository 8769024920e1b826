"""Checks that are made from contracts; `functions` finds them by function."""
