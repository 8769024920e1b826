"""Conditions under which a function must return the same result as in isolation.

A plain test makes one call at a time. An engine reuses its buffers in every step, calls from
several threads and in any mode of torch, and keeps results. Each module has conditions of one kind,
as scenarios of one call; `condition_checks` makes a check of each condition.
"""
