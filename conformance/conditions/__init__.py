"""Conditions under which a function must answer as it does alone.

A test makes one call at a time in a fresh process. An engine fills the same buffers step by step,
calls from several threads, in any mode of torch, and keeps results. Each module has one such
condition; `condition_checks` makes tests of them.
"""
