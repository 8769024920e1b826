"""Runs calls on targets, and detects their side effects on the process.

`invocations` runs a call with its own arguments; `process_state` finds settings that it changed;
`forked_calls` and `crashes` survive code that ends the process.
"""
