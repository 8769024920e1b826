"""Calls and their values: the parts of a value, shared memory, and the exact comparison.

Nothing here runs an implementation. `call` has the arguments of a call, `parts` walks values,
`aliases` finds which arrays share memory, and `comparison` finds the first difference, which
`differences` describes.
"""
