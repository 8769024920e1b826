"""Hypothesis strategies for the valid inputs of every function, importable by others.

Valid by construction: structure is drawn first (lengths, then an order of block ids) and the rest
is derived, so no example is filtered out and a failing batch shrinks to a small readable one. Every
strategy takes a preset, which sets the sizes.
"""
