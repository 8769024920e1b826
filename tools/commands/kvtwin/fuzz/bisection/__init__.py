"""Finds the commit that introduced a failure."""
