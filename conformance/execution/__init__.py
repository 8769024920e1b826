"""Runs a call on a target, and notices what it does to its process.

`invocations` runs a call with arguments of its own; `process_state` finds settings that it changed;
`forked_calls` and `crashes` survive code that ends the process.
"""
