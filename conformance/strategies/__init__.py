"""Hypothesis strategies for the valid input of every function, importable by others.

Valid by construction: structure is drawn first (lengths, then an order of block ids) and the rest
is derived, so nothing is filtered away and a failing batch shrinks to a small readable one. Every
strategy takes a preset, which says how large things are.
"""
