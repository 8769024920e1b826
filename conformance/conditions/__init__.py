"""Conditions under which a function must answer as it does alone.

A test makes one call at a time in a fresh process. An engine fills the same buffers step by step,
calls from several threads, in any mode of torch, and keeps results. Each module has conditions of
one kind, as scenarios of one call; `condition_checks` makes a check of each condition.
"""
